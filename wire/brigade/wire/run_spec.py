"""What a run is: the typed content of a run file, as the coordinator tells it to the nodes.

Names follow Hugging Face's `TrainingArguments` and model configurations where the meaning is the same.
Every structure is frozen and refuses unknown keys; msgspec validates it with path-exact errors.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0.0, lt=1.0)]
Positive = Annotated[float, Meta(gt=0.0)]
NonNegative = Annotated[float, Meta(ge=0.0)]
Factory = Annotated[str, Meta(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="package.module:function")]

Loss = Annotated[
    str,
    Meta(
        pattern=r"^(cross_entropy|mse|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$",
        description="cross_entropy, mse or package.module:function",
    ),
]


class GptSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="gpt"):
    """Decoder-only transformer with pre-norm blocks."""

    vocab_size: Count = 256
    hidden_size: Count = 128
    num_hidden_layers: Count = 4
    num_attention_heads: Count = 4
    intermediate_size: Count | None = None  # 4 * hidden_size when absent
    max_position_embeddings: Count = 1024
    position_embedding: Literal["rope", "learned"] = "rope"
    tie_word_embeddings: bool = False
    dropout: Fraction = 0.0


class MlpSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="mlp"):
    """Classifier of flat vectors."""

    input_size: Count
    hidden_sizes: tuple[Count, ...] = (128, 128)
    num_labels: Count = 10
    batch_norm: bool = False
    dropout: Fraction = 0.0


class CnnSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="cnn"):
    """Classifier of images in (channels, height, width) order."""

    num_channels: Count = 1
    image_size: Count = 28
    hidden_channels: tuple[Count, ...] = (16, 32)
    num_labels: Count = 10
    batch_norm: bool = True
    dropout: Fraction = 0.0


class FactorySpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="factory"):
    """Any function that returns a list of `nn.Module` blocks; installed on every node, never sent."""

    factory: Factory
    arguments: dict[str, Any] = {}


ModelSpec = GptSpec | MlpSpec | CnnSpec | FactorySpec


class TextData(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="text"):
    """A text file read as bytes, cut into windows; targets are the next byte."""

    path: str
    sequence_length: Count = 128
    validation_fraction: Fraction = 0.05


class TokenData(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="tokens"):
    """A `.npy` file with a flat array of unsigned token ids, cut into windows; targets are the next token."""

    path: str
    sequence_length: Count = 128
    validation_fraction: Fraction = 0.05


class ArrayData(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="arrays"):
    """An `.npz` file with arrays `inputs` and `targets`, one sample a row."""

    path: str
    validation_fraction: Fraction = 0.1


class FactoryData(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="factory"):
    """A function returning `(train, validation)` datasets of `(inputs, targets)`; installed on every node."""

    factory: Factory
    arguments: dict[str, Any] = {}


DataSpec = TextData | TokenData | ArrayData | FactoryData


class TrainingSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the model is trained."""

    max_steps: Count
    batch_size: Count = 16  # samples of one optimizer step, over all microbatches
    microbatches: Count = 4  # K: parts of a batch that flow through the pipeline
    shuffle: bool = True
    loss: Loss = "cross_entropy"
    optim: str = "AdamW"  # any class of torch.optim, or NAdamW
    learning_rate: NonNegative = 1e-3
    weight_decay: NonNegative = 0.0  # on parameters with two or more dimensions only
    adam_beta1: Fraction | None = None
    adam_beta2: Fraction | None = None
    adam_epsilon: Positive | None = None
    optim_args: dict[str, bool | int | float | str | None] = {}
    delay_compensation: Literal["none", "predict", "extrapolate", "pipemare"] = "none"
    delay_extrapolation: NonNegative = 1.0  # c of "extrapolate"
    delay_anneal_steps: Natural | None = None  # of "pipemare"; a quarter of max_steps when absent
    delay_discrepancy: Fraction = 0.135  # D of "pipemare"
    lr_scheduler_type: Literal["constant", "cosine", "wsd"] = "constant"
    warmup_steps: Natural = 0
    decay_steps: Natural = 0  # of "wsd": the linear decay at the end
    min_lr_ratio: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    max_grad_norm: NonNegative = 0.0  # 0 does not clip
    bf16: bool = False  # autocast
    gradient_checkpointing: bool = False  # recompute the forward during the backward
    freeze: tuple[str, ...] = ()  # patterns (fnmatch) of parameter names "block.name" that are not trained
    eval_steps: Natural = 0  # 0 evaluates at the end only
    eval_batches: Natural = 8  # microbatch-sized batches of held-out samples; 0 takes all
    save_steps: Natural = 0  # 0 saves at the end only
    save_total_limit: Count = 2
    logging_steps: Count = 10


class PipelineSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the model is laid over the nodes."""

    nodes: Count = 2  # start when so many have joined
    stages: Count | None = None  # at most one a node; as many as pay when absent
    mode: Literal["exact", "async", "lowmem", "stash", "auto"] = "exact"
    versions: Annotated[int, Meta(ge=2)] | None = None  # V of "async"
    schedule: Literal["gpipe", "1f1b", "ls-1f1b"] = "1f1b"  # of "exact"; the other modes need "ls-1f1b" and take it
    gather_timeout_s: Positive = 600.0  # give up when too few nodes have joined by then
    silence_limit_s: Positive = 15.0  # a node that sends no heartbeat for so long is lost


class CompressionSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the links carry: codec texts such as `raw`, `bf16+zstd`, `int8:block=256,rounding=stochastic`."""

    forward: str = "raw"
    backward: str = "raw"


Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="up to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
    ),
]


class RunSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training job."""

    name: Name
    seed: Natural = 0
    output_dir: str | None = None  # relative to the working directory; runs/<name> when absent
    model: ModelSpec
    data: DataSpec
    training: TrainingSpec
    pipeline: PipelineSpec = PipelineSpec()
    compression: CompressionSpec = CompressionSpec()


class ExportFacts(Struct, frozen=True, kw_only=True):
    """What lies beside an exported model, as JSON: enough to build the model again and to know where it comes from."""

    format: Literal[1] = 1
    name: str  # of the run
    run_id: str
    seed: Natural
    steps_done: Natural
    model: ModelSpec

"""The tables of a run's SQLite file."""

SCHEMA_VERSION = 1

SCHEMA = (
    """
    CREATE TABLE run (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        run_id TEXT NOT NULL,
        name TEXT NOT NULL,
        identity TEXT NOT NULL,
        spec TEXT NOT NULL,
        created_at REAL NOT NULL
    )
    """,
    """
    CREATE TABLE attempts (
        attempt INTEGER PRIMARY KEY,
        first_step INTEGER NOT NULL,
        spec TEXT NOT NULL,
        began_at REAL NOT NULL,
        ended_at REAL,
        state TEXT,
        reason TEXT
    )
    """,
    """
    CREATE TABLE nodes (
        node_id TEXT PRIMARY KEY,
        public_key TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        host TEXT NOT NULL,
        device TEXT NOT NULL,
        first_seen_at REAL NOT NULL,
        last_seen_at REAL NOT NULL,
        revoked_at REAL
    )
    """,
    """
    CREATE TABLE plans (
        generation INTEGER PRIMARY KEY,
        attempt INTEGER NOT NULL,
        plan TEXT NOT NULL,
        made_at REAL NOT NULL
    )
    """,
    """
    CREATE TABLE steps (
        step INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        loss REAL,
        gradient_norm REAL,
        learning_rate REAL NOT NULL,
        gradient_scale REAL NOT NULL,
        skipped INTEGER NOT NULL,
        tokens INTEGER NOT NULL,
        samples INTEGER NOT NULL,
        sample_ids TEXT NOT NULL,
        nodes INTEGER NOT NULL,
        duration_s REAL NOT NULL,
        statistics TEXT NOT NULL,
        committed_at REAL NOT NULL,
        PRIMARY KEY (step, attempt)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE evaluations (
        step INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        loss REAL,
        target_count INTEGER NOT NULL,
        evaluated_at REAL NOT NULL,
        PRIMARY KEY (step, attempt)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE checkpoints (
        steps_done INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        size INTEGER NOT NULL,
        sealed_at REAL NOT NULL,
        PRIMARY KEY (steps_done, attempt)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY,
        at REAL NOT NULL,
        kind TEXT NOT NULL,
        node TEXT NOT NULL,
        text TEXT NOT NULL
    )
    """,
)

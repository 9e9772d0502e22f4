-- A database as schema 3 wrote it, with a row of every kind. Never change it.
PRAGMA journal_mode = WAL;
BEGIN;
CREATE TABLE tasks (
  principal      TEXT NOT NULL,
  id             TEXT NOT NULL,
  revision       INTEGER NOT NULL,
  status         TEXT NOT NULL,
  status_message TEXT NOT NULL,
  created_at     INTEGER NOT NULL, -- Unix ms
  updated_at     INTEGER NOT NULL, -- Unix ms
  ttl            INTEGER NOT NULL, -- ms; 0 is unlimited
  expires_at     INTEGER,          -- Unix ms; NULL is never
  poll_interval  INTEGER NOT NULL, -- ms
  key            TEXT,             -- idempotency key; NULL is none
  owner          TEXT NOT NULL,    -- '' once terminal
  remote         TEXT NOT NULL,
  outcome        INTEGER NOT NULL, -- 0 none, 1 result, 2 result with isError, 3 error
  method         TEXT NOT NULL,
  params         BLOB,
  body           BLOB, asked INTEGER NOT NULL DEFAULT 0,             -- of the outcome
  UNIQUE (principal, id)
);
CREATE UNIQUE INDEX tasks_keyed ON tasks (principal, key) WHERE key IS NOT NULL;
CREATE INDEX tasks_listed ON tasks (principal, created_at DESC, id DESC);
CREATE INDEX tasks_due ON tasks (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX tasks_running ON tasks (owner) WHERE owner <> '';
CREATE TABLE owners (
  owner       TEXT PRIMARY KEY,
  alive_until INTEGER NOT NULL -- Unix ms
) WITHOUT ROWID;
CREATE TABLE expired (
  principal      TEXT NOT NULL,
  id             TEXT NOT NULL,
  remember_until INTEGER NOT NULL, -- Unix ms
  PRIMARY KEY (principal, id)
) WITHOUT ROWID;
CREATE INDEX expired_forgotten ON expired (remember_until);
CREATE TABLE inputs (
  n         INTEGER PRIMARY KEY,
  principal TEXT NOT NULL,
  id        TEXT NOT NULL,
  key       TEXT NOT NULL,
  method    TEXT NOT NULL,
  params    BLOB,
  answer    INTEGER NOT NULL, -- as tasks.outcome; 0 is open
  body      BLOB,             -- of the answer
  UNIQUE (principal, id, key)
);
CREATE TABLE usage (
  principal TEXT PRIMARY KEY,
  tasks     INTEGER NOT NULL,
  bytes     INTEGER NOT NULL -- of params and bodies, of tasks and inputs
) WITHOUT ROWID;
INSERT INTO tasks (principal, id, revision, status, status_message, created_at, updated_at, ttl, expires_at, poll_interval, key, owner, remote, outcome, method, params, body, asked)
  VALUES ('alice', 'working', 1, 'working', 'über working', 1767322800000, 1767322801500, 3600000, 1767326400000, 1000, NULL, 'o1', '', 0, 'tools/call', CAST('{"name":"x"}' AS BLOB), NULL, 0);
INSERT INTO tasks (principal, id, revision, status, status_message, created_at, updated_at, ttl, expires_at, poll_interval, key, owner, remote, outcome, method, params, body, asked)
  VALUES ('alice', 'input_required', 2, 'input_required', 'über input_required', 1767322800000, 1767322801500, 3600000, 1767326400000, 1000, NULL, 'o1', 'remote-1', 0, 'tools/call', CAST('{"name":"x"}' AS BLOB), NULL, 4);
INSERT INTO tasks (principal, id, revision, status, status_message, created_at, updated_at, ttl, expires_at, poll_interval, key, owner, remote, outcome, method, params, body, asked)
  VALUES ('alice', 'completed', 2, 'completed', 'über completed', 1767322800000, 1767322801500, 3600000, 1767326400000, 1000, 'k1', '', '', 1, 'tools/call', CAST('{"name":"x"}' AS BLOB), CAST('{"content":[],"ü":1.0}' AS BLOB), 1);
INSERT INTO tasks (principal, id, revision, status, status_message, created_at, updated_at, ttl, expires_at, poll_interval, key, owner, remote, outcome, method, params, body, asked)
  VALUES ('alice', 'is-error', 2, 'failed', 'über failed', 1767322800000, 1767322801500, 0, NULL, 1000, NULL, '', '', 2, 'tools/call', CAST('{"name":"x"}' AS BLOB), CAST('{"content":[],"isError":true}' AS BLOB), 0);
INSERT INTO tasks (principal, id, revision, status, status_message, created_at, updated_at, ttl, expires_at, poll_interval, key, owner, remote, outcome, method, params, body, asked)
  VALUES ('alice', 'error', 2, 'failed', 'über failed', 1767322800000, 1767322801500, 3600000, 1767326400000, 1000, NULL, '', '', 3, 'tools/call', CAST('{"name":"x"}' AS BLOB), CAST('{"code":-32050,"message":"m"}' AS BLOB), 0);
INSERT INTO tasks (principal, id, revision, status, status_message, created_at, updated_at, ttl, expires_at, poll_interval, key, owner, remote, outcome, method, params, body, asked)
  VALUES ('alice', 'cancelled', 2, 'cancelled', 'über cancelled', 1767322800000, 1767322801500, 3600000, 1767326400000, 1000, NULL, '', '', 0, 'tools/call', CAST('{"name":"x"}' AS BLOB), NULL, 1);
INSERT INTO inputs (principal, id, key, method, params, answer, body)
  VALUES ('alice', 'input_required', '1', 'elicitation/create', CAST('{"message":"ü",  "x":1.0}' AS BLOB), 1, CAST('{"action":"accept","content":{"ü":1.0}}' AS BLOB));
INSERT INTO inputs (principal, id, key, method, params, answer, body)
  VALUES ('alice', 'input_required', '2', 'sampling/createMessage', CAST('{"messages":[]}' AS BLOB), 3, CAST('{"code":-1,"message":"m"}' AS BLOB));
INSERT INTO inputs (principal, id, key, method, params, answer, body)
  VALUES ('alice', 'completed', '1', 'elicitation/create', CAST('{}' AS BLOB), 1, CAST('{"action":"decline"}' AS BLOB));
INSERT INTO inputs (principal, id, key, method, params, answer, body)
  VALUES ('alice', 'input_required', '3', 'tools/call', CAST('{}' AS BLOB), 2, CAST('{"isError":true}' AS BLOB));
INSERT INTO inputs (principal, id, key, method, params, answer, body)
  VALUES ('alice', 'cancelled', '1', 'elicitation/create', CAST('{}' AS BLOB), 0, NULL);
INSERT INTO inputs (principal, id, key, method, params, answer, body)
  VALUES ('alice', 'input_required', '4', 'roots/list', NULL, 0, NULL);
INSERT INTO owners (owner, alive_until) VALUES ('o1', 1767322810000);
INSERT INTO expired (principal, id, remember_until) VALUES ('alice', 'gone', 1767323400000);
INSERT INTO usage (principal, tasks, bytes) VALUES ('alice', 6, 301);
CREATE TRIGGER task_stored AFTER INSERT ON tasks BEGIN
  INSERT INTO usage
    VALUES (NEW.principal, 1, coalesce(octet_length(NEW.params), 0) + coalesce(octet_length(NEW.body), 0))
    ON CONFLICT (principal) DO UPDATE SET tasks = tasks + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER outcome_stored AFTER UPDATE OF body ON tasks
WHEN octet_length(NEW.body) IS NOT octet_length(OLD.body) BEGIN
  UPDATE usage SET bytes = bytes + coalesce(octet_length(NEW.body), 0) - coalesce(octet_length(OLD.body), 0)
    WHERE principal = NEW.principal;
END;
CREATE TRIGGER task_deleted AFTER DELETE ON tasks BEGIN
  UPDATE usage SET tasks = tasks - 1,
    bytes = bytes - coalesce(octet_length(OLD.params), 0) - coalesce(octet_length(OLD.body), 0)
    WHERE principal = OLD.principal;
  DELETE FROM usage WHERE principal = OLD.principal AND tasks = 0;
END;
CREATE TRIGGER input_stored AFTER INSERT ON inputs BEGIN
  UPDATE usage SET bytes = bytes + coalesce(octet_length(NEW.params), 0) + coalesce(octet_length(NEW.body), 0)
    WHERE principal = NEW.principal;
END;
CREATE TRIGGER answer_stored AFTER UPDATE OF body ON inputs
WHEN octet_length(NEW.body) IS NOT octet_length(OLD.body) BEGIN
  UPDATE usage SET bytes = bytes + coalesce(octet_length(NEW.body), 0) - coalesce(octet_length(OLD.body), 0)
    WHERE principal = NEW.principal;
END;
CREATE TRIGGER input_deleted AFTER DELETE ON inputs BEGIN
  UPDATE usage SET bytes = bytes - coalesce(octet_length(OLD.params), 0) - coalesce(octet_length(OLD.body), 0)
    WHERE principal = OLD.principal;
END;
PRAGMA user_version = 3;
COMMIT;

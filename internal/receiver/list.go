package receiver

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/store"
	"github.com/coatcheck/coatcheck/task"
)

func (o *operation) list(ctx context.Context, params json.RawMessage) Answer {
	from := o.from
	if !from.Identified { // CAP-3, SEC-4
		return o.invalid(ctx, protocol.CodeMethodNotFound, "Method not found: %s is not available without authorization", protocol.MethodTasksList)
	}
	var after store.Position
	if raw := protocol.Get(params, "cursor"); raw != nil {
		cursor, ok := protocol.Unquote(raw)
		var err error
		if after, err = parseCursor(from.Principal, cursor); !ok || err != nil { // LST-3
			return o.invalid(ctx, protocol.CodeInvalidParams, "Invalid params: unknown cursor")
		}
	}
	tasks, more, err := o.engine.List(ctx, from.Principal, after, o.pageSize)
	if err != nil {
		return o.failed(ctx, "list tasks", err)
	}
	page := protocol.ListTasksResult{Tasks: make([]protocol.Task, len(tasks))}
	for i, t := range tasks {
		page.Tasks[i] = wireTask(t)
	}
	if more { // LST-1
		page.NextCursor = formatCursor(from.Principal, tasks[len(tasks)-1])
	}
	return Answer{Result: protocol.Marshal(page)}
}

// A cursor is the position it stands for: the time and id of the principal's own task, so
// that it tells nothing of others, and a digest that ties it to the principal.
const digestLen = 8

func formatCursor(p task.Principal, last *task.Task) string {
	place := binary.BigEndian.AppendUint64(nil, uint64(last.CreatedAt.UnixMilli()))
	place = append(place, last.ID...)
	return base64.RawURLEncoding.EncodeToString(append(cursorDigest(p, place), place...))
}

func parseCursor(p task.Principal, cursor string) (store.Position, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil {
		return store.Position{}, err
	}
	if len(raw) <= digestLen+8 {
		return store.Position{}, errors.New("cursor too short")
	}
	digest, place := raw[:digestLen], raw[digestLen:]
	if subtle.ConstantTimeCompare(digest, cursorDigest(p, place)) != 1 {
		return store.Position{}, errors.New("cursor is not of this listing")
	}
	at := time.UnixMilli(int64(binary.BigEndian.Uint64(place))).UTC()
	return store.Position{CreatedAt: at, ID: string(place[8:])}, nil
}

func cursorDigest(p task.Principal, place []byte) []byte {
	h := sha256.New()
	h.Write([]byte("coatcheck cursor 1\x00" + string(p) + "\x00"))
	h.Write(place)
	return h.Sum(nil)[:digestLen]
}

package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Task is the task object of revision 2025-11-25, as it stands flat in tasks/get and
// tasks/cancel results, nested in CreateTaskResult and as params of status notifications.
type Task struct {
	TaskID        string
	Status        string
	StatusMessage string // omitted when empty
	CreatedAt     time.Time
	LastUpdatedAt time.Time
	TTL           *int64 // milliseconds from CreatedAt; nil is JSON null: unlimited (TTL-2)
	PollInterval  *int64 // milliseconds; omitted when nil (TTL-4)

	// Extra holds members this package does not know, in the order they came.
	// They are written back after the known ones.
	Extra []Member
}

// timeLayout is ISO 8601 in UTC with milliseconds (TTL-1, requirements C.3).
const timeLayout = "2006-01-02T15:04:05.000Z"

// AppendJSON appends the task's wire form to dst.
func (t Task) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"taskId":`...)
	dst = AppendString(dst, t.TaskID)
	dst = append(dst, `,"status":`...)
	dst = AppendString(dst, t.Status)
	if t.StatusMessage != "" {
		dst = append(dst, `,"statusMessage":`...)
		dst = AppendString(dst, t.StatusMessage)
	}
	dst = append(dst, `,"createdAt":"`...)
	dst = t.CreatedAt.UTC().AppendFormat(dst, timeLayout)
	dst = append(dst, `","lastUpdatedAt":"`...)
	dst = t.LastUpdatedAt.UTC().AppendFormat(dst, timeLayout)
	dst = append(dst, `","ttl":`...)
	if t.TTL == nil {
		dst = append(dst, "null"...)
	} else {
		dst = strconv.AppendInt(dst, *t.TTL, 10)
	}
	if t.PollInterval != nil {
		dst = append(dst, `,"pollInterval":`...)
		dst = strconv.AppendInt(dst, *t.PollInterval, 10)
	}
	for _, m := range t.Extra {
		dst = append(dst, ',')
		dst = AppendString(dst, m.Key)
		dst = append(dst, ':')
		dst = append(dst, m.Value...)
	}
	return append(dst, '}')
}

// MarshalJSON implements json.Marshaler.
func (t Task) MarshalJSON() ([]byte, error) { return t.AppendJSON(nil), nil }

// UnmarshalJSON reads a task as any receiver may write it: unknown members are kept in
// Extra, timestamps may have any ISO 8601 precision and offset.
func (t *Task) UnmarshalJSON(data []byte) error {
	members, err := Members(data)
	if err != nil {
		return err
	}
	*t = Task{}
	var haveID, haveStatus bool
	for _, m := range members {
		switch m.Key {
		case "taskId":
			haveID = true
			err = json.Unmarshal(m.Value, &t.TaskID)
		case "status":
			haveStatus = true
			err = json.Unmarshal(m.Value, &t.Status)
		case "statusMessage":
			err = json.Unmarshal(m.Value, &t.StatusMessage)
		case "createdAt":
			err = unmarshalTime(m.Value, &t.CreatedAt)
		case "lastUpdatedAt":
			err = unmarshalTime(m.Value, &t.LastUpdatedAt)
		case "ttl":
			t.TTL, err = unmarshalMillis(m.Value)
		case "pollInterval":
			t.PollInterval, err = unmarshalMillis(m.Value)
		default:
			t.Extra = append(t.Extra, Member{Key: m.Key, Value: bytes.Clone(m.Value)})
		}
		if err != nil {
			return fmt.Errorf("task member %q: %w", m.Key, err)
		}
	}
	if !haveID || !haveStatus {
		return errors.New("task without taskId or status")
	}
	return nil
}

func unmarshalTime(raw json.RawMessage, to *time.Time) error {
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	at, err := time.Parse(time.RFC3339Nano, s)
	*to = at.UTC()
	if year := to.Year(); err == nil && (year < 0 || year > 9999) { // by its offset only
		return fmt.Errorf("year %d cannot be written in UTC", year)
	}
	return err
}

func unmarshalMillis(raw json.RawMessage) (*int64, error) {
	var f *float64
	if err := json.Unmarshal(raw, &f); err != nil || f == nil {
		return nil, err
	}
	if !(*f > -1<<62 && *f < 1<<62) {
		return nil, fmt.Errorf("%s ms is out of range", raw)
	}
	ms := int64(*f)
	return &ms, nil
}

// CreateTaskResult is the answer to an accepted task-augmented request (CRE-1).
type CreateTaskResult struct {
	Task Task            `json:"task"`
	Meta json.RawMessage `json:"_meta,omitempty"`
}

// ListTasksResult is one page of tasks/list (LST-1).
type ListTasksResult struct {
	Tasks      []Task `json:"tasks"`
	NextCursor string `json:"nextCursor,omitempty"`
}

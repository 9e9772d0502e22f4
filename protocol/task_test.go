package protocol_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
)

func TestTaskShape(t *testing.T) {
	at := time.Date(2025, 11, 25, 10, 30, 0, 7_900_000, time.FixedZone("", 3600))
	ttl, poll := int64(60000), int64(5000)
	for _, tc := range []struct {
		task protocol.Task
		want string
	}{
		{ // TTL-1, TTL-2: ttl is always there, times are UTC with milliseconds
			protocol.Task{TaskID: "T", Status: "working", CreatedAt: at, LastUpdatedAt: at},
			`{"taskId":"T","status":"working","createdAt":"2025-11-25T09:30:00.007Z","lastUpdatedAt":"2025-11-25T09:30:00.007Z","ttl":null}`,
		},
		{ // TTL-4
			protocol.Task{
				TaskID: "T", Status: "failed", StatusMessage: "<é\n>", CreatedAt: at, LastUpdatedAt: at,
				TTL: &ttl, PollInterval: &poll, Extra: []protocol.Member{{Key: "x", Value: json.RawMessage("1.0")}},
			},
			`{"taskId":"T","status":"failed","statusMessage":"<é\n>","createdAt":"2025-11-25T09:30:00.007Z","lastUpdatedAt":"2025-11-25T09:30:00.007Z","ttl":60000,"pollInterval":5000,"x":1.0}`,
		},
	} {
		got := tc.task.AppendJSON(nil)
		if string(got) != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
		var back protocol.Task
		if err := json.Unmarshal(got, &back); err != nil {
			t.Fatal(err)
		}
		if again := back.AppendJSON(nil); string(again) != tc.want {
			t.Errorf("after a round trip: %s", again)
		}
	}
}

func FuzzTask(f *testing.F) {
	f.Add([]byte(`{"taskId":"T","status":"working","createdAt":"2025-11-25T10:30:00Z","lastUpdatedAt":"2025-11-25T10:30:00.5+02:00","ttl":30000,"pollInterval":5000,"new":{"a":[1]}}`))
	f.Add([]byte(`{"taskId":"","status":"x","ttl":1.5e3}`))
	f.Add([]byte(`{"taskId":"T","status":"working","ttl":1e300}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var task protocol.Task
		if json.Unmarshal(data, &task) != nil {
			return
		}
		first := task.AppendJSON(nil)
		var back protocol.Task
		if err := json.Unmarshal(first, &back); err != nil {
			t.Fatalf("%q became %q: %v", data, first, err)
		}
		if second := back.AppendJSON(nil); string(second) != string(first) {
			t.Fatalf("%q then %q", first, second)
		}
	})
}

package ticket_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/coatcheck/coatcheck/internal/ticket"
	"github.com/coatcheck/coatcheck/protocol"
)

func TestNames(t *testing.T) {
	for _, tc := range []struct {
		prefixes int
		list     bool
		want     ticket.Names
	}{
		{0, true, ticket.Names{Collect: "ticket_collect", Cancel: "ticket_cancel", List: "ticket_list"}},
		{0, false, ticket.Names{Collect: "ticket_collect", Cancel: "ticket_cancel"}},
		{1, true, ticket.Names{Collect: "coatcheck_ticket_collect", Cancel: "coatcheck_ticket_cancel", List: "coatcheck_ticket_list"}},
		{1, false, ticket.Names{Collect: "coatcheck_ticket_collect", Cancel: "coatcheck_ticket_cancel"}},
		{2, false, ticket.Names{Collect: "coatcheck_coatcheck_ticket_collect", Cancel: "coatcheck_coatcheck_ticket_cancel"}},
	} {
		n := ticket.NamesFor(tc.prefixes, tc.list)
		if n != tc.want {
			t.Errorf("NamesFor(%d, %t) = %v", tc.prefixes, tc.list, n)
		}
		for name, has := range map[string]bool{
			n.Collect: true, n.Cancel: true, tc.want.List: tc.list, "": false,
			"ticket_list": tc.list && tc.prefixes == 0, "coatcheck_ticket_list": tc.list && tc.prefixes == 1,
			"ticket_collect": tc.prefixes == 0, "coatcheck_ticket_collect": tc.prefixes == 1, "slow_compute": false,
		} {
			if n.Has(name) != has {
				t.Errorf("%v.Has(%q) = %t", n, name, !has)
			}
		}
	}
	for name, want := range map[string]int{
		"ticket_collect": 1, "ticket_cancel": 1, "ticket_list": 1, "coatcheck_ticket_list": 2, "coatcheck_coatcheck_ticket_cancel": 3,
		"": 0, "Ticket_list": 0, "coatcheck_": 0, "coatcheck_ticket_lists": 0,
	} {
		if got := ticket.Prefixes(name); got != want {
			t.Errorf("Prefixes(%q) = %d, want %d", name, got, want)
		}
	}
}

// TestTools holds the definitions and the sentence against testdata/listed.json, of which
// TestTokens in peers says what it costs.
func TestTools(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "listed.json"))
	if err != nil {
		t.Fatal(err)
	}
	var listed []struct {
		Prefixed bool
		Tools    []json.RawMessage
		Sentence string
	}
	if err := json.Unmarshal(data, &listed); err != nil {
		t.Fatal(err)
	}
	for _, want := range listed {
		prefixes := 0
		if want.Prefixed {
			prefixes = 1
		}
		n := ticket.NamesFor(prefixes, true)
		if diff := cmp.Diff(want.Tools, n.Tools()); diff != "" {
			t.Errorf("tools (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want.Tools[:2], ticket.NamesFor(prefixes, false).Tools()); diff != "" {
			t.Errorf("tools without a list (-want +got):\n%s", diff)
		}
		if got := ticket.Instruct(""); got != want.Sentence {
			t.Errorf("instructions: %q", got)
		}
		if got := ticket.Instruct("Be brief.\n"); got != "Be brief.\n\n\n"+want.Sentence {
			t.Errorf("more instructions: %q", got)
		}
		for i, tool := range n.Tools() {
			d, ok := ticket.Describe(tool)
			if !ok || !n.Has(d.Name) || d.Output || !d.Repeatable {
				t.Errorf("%s is described as %v", tool, d)
			}
			readOnly := string(protocol.Get(protocol.Get(tool, "annotations"), "readOnlyHint")) == "true"
			if cancels := i == 1; readOnly == cancels {
				t.Errorf("readOnlyHint of %s", tool)
			}
		}
	}
	if len(listed) != 2 || listed[0].Prefixed == listed[1].Prefixed {
		t.Error("testdata/listed.json is not about both ways of naming")
	}
}

func TestDescribe(t *testing.T) {
	for _, tc := range []struct {
		tool string
		want ticket.Tool
		ok   bool
	}{
		{`{"name":"a"}`, ticket.Tool{Name: "a"}, true},
		{`{"name":"\u00e9","outputSchema":{},"annotations":{"readOnlyHint":true}}`, ticket.Tool{Name: "é", Output: true, Repeatable: true}, true},
		{`{"annotations":{"idempotentHint" : true , "readOnlyHint":false},"name":"a"}`, ticket.Tool{Name: "a", Repeatable: true}, true},
		{`{"name":"a","annotations":{"idempotentHint":"true","destructiveHint":true},"outputSchema":null}`, ticket.Tool{Name: "a"}, true},
		{`{"name":"a","idempotentHint":true,"annotations":null}`, ticket.Tool{Name: "a"}, true},
		{`{"title":"a"}`, ticket.Tool{}, false},
		{`{"name":1}`, ticket.Tool{}, false},
		{`[]`, ticket.Tool{}, false},
	} {
		if got, ok := ticket.Describe([]byte(tc.tool)); got != tc.want || ok != tc.ok {
			t.Errorf("Describe(%s) = %+v, %t", tc.tool, got, ok)
		}
	}
}

func TestAppend(t *testing.T) {
	tools := []json.RawMessage{json.RawMessage(`{"name":"x"}`), json.RawMessage(`{"name":"y"}`)}
	for _, tc := range []struct{ result, want string }{
		{`{"tools":[]}`, `{"tools":[{"name":"x"},{"name":"y"}]}`},
		{`{"tools":[ ] }`, `{"tools":[{"name":"x"},{"name":"y"} ] }`},
		{`{"tools":[{"name":"a"}]}`, `{"tools":[{"name":"a"},{"name":"x"},{"name":"y"}]}`},
		{
			` {"nextCursor" : "é\u00e9" , "tools" : [ {"name":"a]"} , {"n":[1.0]}` + "\n\t] ,\"_meta\":{ }} ",
			` {"nextCursor" : "é\u00e9" , "tools" : [ {"name":"a]"} , {"n":[1.0]},{"name":"x"},{"name":"y"}` + "\n\t] ,\"_meta\":{ }} ",
		},
		{`{"tools":{}}`, ``}, {`{}`, ``}, {`[]`, ``}, {`null`, ``},
	} {
		before := bytes.Clone([]byte(tc.result))
		got, err := ticket.Append(before, tools)
		if string(got) != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("Append to %s: %s, %v", tc.result, got, err)
		}
		if string(before) != tc.result {
			t.Errorf("Append wrote to what it was given: %s", before)
		}
		if err == nil {
			if got, err = ticket.Append(before, nil); err != nil || string(got) != tc.result {
				t.Errorf("Append of nothing to %s: %s, %v", tc.result, got, err)
			}
		}
	}
}

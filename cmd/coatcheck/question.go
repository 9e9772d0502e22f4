package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/coatcheck/coatcheck/internal/form"
	"github.com/coatcheck/coatcheck/protocol"
)

// question is an elicitation: a request of the server for something that only a person, or
// a script in their stead, knows.
type question struct {
	params  json.RawMessage // as they came
	message string
	form    *form.Form // nil in URL mode
	url     string
	id      string // of a question in URL mode

	answered chan struct{} // closed once reply is set
	reply    answer
	gone     chan struct{} // closed when nobody waits for an answer any more
}

// answer is what a question is answered with.
type answer struct{ result json.RawMessage }

// The answers without content.
var (
	accepted = answer{json.RawMessage(`{"action":"accept"}`)}
	declined = answer{json.RawMessage(`{"action":"decline"}`)}
	dismiss  = answer{json.RawMessage(`{"action":"cancel"}`)}
)

// acceptedWith is the answer to a form.
func acceptedWith(content json.RawMessage) answer {
	result := append(json.RawMessage(`{"action":"accept","content":`), content...)
	return answer{append(result, '}')}
}

// parseQuestion reads the params of elicitation/create.
func parseQuestion(params json.RawMessage) (*question, *jsonrpc.Error) {
	var p struct {
		Mode            string
		Message         string
		RequestedSchema json.RawMessage
		URL             string
		ElicitationID   string
	}
	invalid := func(format string, args ...any) *jsonrpc.Error {
		return &jsonrpc.Error{Code: protocol.CodeInvalidParams, Message: fmt.Sprintf(format, args...)}
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, invalid("the elicitation cannot be read: %v", err)
	}
	q := &question{params: params, message: p.Message, answered: make(chan struct{}), gone: make(chan struct{})}
	switch p.Mode {
	case "", "form":
		var err error
		if q.form, err = form.Parse(p.RequestedSchema); err != nil {
			return nil, invalid("%v", err)
		}
	case "url":
		u, err := url.Parse(p.URL)
		if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" ||
			strings.ContainsFunc(p.URL, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
			return nil, invalid("the elicitation's url is no http or https URL")
		}
		q.url, q.id = p.URL, p.ElicitationID
	default:
		return nil, invalid("elicitation mode %.40q is not supported", p.Mode)
	}
	return q, nil
}

// host is where the URL leads.
func (q *question) host() string {
	u, err := url.Parse(q.url)
	if err != nil { // it was parsed before
		return ""
	}
	return u.Hostname()
}

// show writes the question, without its fields. What the server says is indented, so that it
// cannot pass for what we say.
func (q *question) show(say func(string, ...any), from string) {
	say("Question from %s:", from)
	for _, line := range lines(q.message) {
		say("  %s", line)
	}
	if q.form != nil {
		return
	}
	say("It asks you to open this address in a browser:")
	say("  %s", q.url)
	host := q.host()
	say("It leads to the host %s", host)
	if strings.ContainsFunc(host, func(r rune) bool { return r > unicode.MaxASCII }) {
		say("whose name has other letters than a to z: look twice.")
	}
}

// showFields writes what is asked for in lines.
func (q *question) showFields(say func(string, ...any)) {
	if q.form == nil {
		return
	}
	for _, f := range q.form.Fields {
		need := "optional"
		if f.Required {
			need = "required"
		}
		about := []string{f.Takes(), f.Limits(), f.Title, f.Description}
		if f.Default != nil {
			about = append(about, "default "+string(f.Default))
		}
		about = slices.DeleteFunc(about, func(s string) bool { return s == "" })
		say("  %s", brief(fmt.Sprintf("%s (%s): %s", f.Name, need, strings.Join(about, "; "))))
	}
}

// brief makes a text of a server fit for a place in a line.
func brief(s string) string {
	const most = 400
	s = oneLine(s)
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most]) + "…"
	}
	return s
}

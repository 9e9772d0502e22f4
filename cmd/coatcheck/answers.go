package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/coatcheck/coatcheck/protocol"
)

// answerFlags say how a server's questions are answered without a person.
type answerFlags struct {
	Answer  string `xor:"answer" placeholder:"FILE" help:"Answer the server's questions with the JSON in FILE, - for stdin: an object for every question, or an array of one for each, in order as far as they fit. {\"action\":\"decline\"} declines."`
	Decline bool   `xor:"answer" help:"Decline every question of the server."`
}

// script is the answers that were prepared.
type script struct {
	name    string // of the file
	entries []prepared
	every   bool // the one entry is for every question; otherwise each is used once

	last    json.RawMessage // the question answered last
	with    json.RawMessage // what it was answered with
	refused int             // how often it was asked again right then
}

// prepared is one answer.
type prepared struct {
	action  string
	content json.RawMessage // nil if there is none
}

// maxAnswers bounds the answers' file, in bytes.
const maxAnswers = 16 << 20

// script returns the prepared answers, nil if a person is to be asked.
func (f answerFlags) script(stdin io.Reader) (*script, error) {
	if f.Decline {
		return &script{name: "--decline", entries: []prepared{{action: "decline"}}, every: true}, nil
	}
	if f.Answer == "" {
		return nil, nil
	}
	from := stdin
	if f.Answer != "-" {
		file, err := os.Open(f.Answer)
		if err != nil {
			return nil, fmt.Errorf("--answer: %w", err)
		}
		defer file.Close()
		from = file
	}
	data, err := io.ReadAll(io.LimitReader(from, maxAnswers+1))
	if err == nil && len(data) > maxAnswers {
		err = errors.New("more than 16 MiB")
	}
	if err != nil {
		return nil, fmt.Errorf("--answer %s: %w", f.Answer, err)
	}
	s, err := parseScript(data)
	if err != nil {
		return nil, fmt.Errorf("--answer %s: %w", f.Answer, err)
	}
	s.name = f.Answer
	return s, nil
}

func parseScript(data []byte) (*script, error) {
	if err := protocol.Valid(data); err != nil {
		return nil, err
	}
	elements, err := protocol.Elements(data)
	s := &script{every: err != nil}
	if s.every {
		elements = []protocol.Member{{Value: bytes.TrimSpace(data)}}
	}
	for i, element := range elements {
		p, err := parsePrepared(element.Value)
		if err != nil {
			return nil, fmt.Errorf("answer %d: %w", i+1, err)
		}
		s.entries = append(s.entries, p)
	}
	return s, nil
}

// parsePrepared reads one answer: a content, or an object with nothing but an action and
// perhaps a content.
func parsePrepared(raw json.RawMessage) (prepared, error) {
	members, err := protocol.Members(raw)
	if err != nil {
		return prepared{}, err
	}
	var p prepared
	for _, m := range members {
		switch m.Key {
		case "action":
			p.action, _ = protocol.Unquote(m.Value)
		case "content":
			p.content = m.Value
		default:
			return prepared{action: "accept", content: raw}, nil
		}
	}
	switch p.action {
	case "decline", "cancel":
		return prepared{action: p.action}, nil
	case "accept":
		return p, nil
	}
	return prepared{action: "accept", content: raw}, nil
}

// maxRefused is how often the same answer to the same question is refused before it is
// taken to be wrong.
const maxRefused = 2

// answer returns what is prepared for a question, and why there is nothing. Of several it is
// the first that fits: questions that are asked at once come in any order.
func (s *script) answer(q *question) (answer, error) {
	if len(s.entries) == 0 {
		return answer{}, fmt.Errorf("%s has no answer left for this question", s.name)
	}
	var chosen int
	var a answer
	var unfit error
	for i, p := range s.entries {
		var err error
		if a, err = p.to(q); err == nil {
			chosen, unfit = i, nil
			break
		}
		if unfit == nil {
			unfit = err
		}
	}
	if unfit != nil {
		return answer{}, fmt.Errorf("%s: %w", s.name, unfit)
	}
	if bytes.Equal(s.last, q.params) && bytes.Equal(s.with, a.result) {
		if s.refused++; s.refused == maxRefused {
			return answer{}, fmt.Errorf("%s: the server asks again and again, so it does not take this answer: %s", s.name, a.result)
		}
	} else {
		s.last, s.with, s.refused = q.params, a.result, 0
	}
	if !s.every {
		s.entries = slices.Delete(s.entries, chosen, chosen+1)
	}
	return a, nil
}

func (p prepared) to(q *question) (answer, error) {
	switch {
	case p.action == "decline":
		return declined, nil
	case p.action == "cancel":
		return dismiss, nil
	case q.form == nil && p.content != nil:
		return answer{}, errors.New(`this question wants an address to be opened; only {"action":"accept"} or {"action":"decline"} answers it`)
	case q.form == nil:
		return accepted, nil
	}
	content := p.content
	if content == nil {
		content = json.RawMessage("{}")
	}
	if err := q.form.Check(content); err != nil {
		return answer{}, err
	}
	return acceptedWith(content), nil
}

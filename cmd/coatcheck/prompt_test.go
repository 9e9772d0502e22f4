package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"charm.land/huh/v2"
)

// TestPages: a form is put on as many pages as the terminal's height asks for, and what was
// not touched is the default.
func TestPages(t *testing.T) {
	q, refused := parseQuestion(json.RawMessage(`{"message":"Fill in","requestedSchema":` + everything + `}`))
	if refused != nil {
		t.Fatal(refused)
	}
	p := newPrompt(q)
	var fields []huh.Field
	for i := range p.inputs {
		fields = append(fields, p.inputs[i].show())
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "no terminal")) // so 24 rows
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if pages := p.pages(append(fields, huh.NewConfirm()), f); len(pages) != 3 {
		t.Errorf("%d pages, want 3", len(pages))
	}
	if pages := p.pages([]huh.Field{huh.NewConfirm()}, f); len(pages) != 1 {
		t.Errorf("%d pages, want 1", len(pages))
	}
	p.inputs[0].text = "Ann"
	p.inputs[6].choice = 1
	content, err := p.content()
	if want := `{"name":"Ann","count":3,"sure":false,"colour":"g","size":"l","days":["tu"]}`; err != nil || string(content) != want {
		t.Errorf("content %s (%v), want %s", content, err, want)
	}
}

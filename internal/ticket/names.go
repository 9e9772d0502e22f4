// Package ticket is what models and programs read of tickets: the tools that collect, cancel and
// list the calls that go on after their client was answered, the texts of those answers, and
// tools listed so that such an answer fits them. It is pure: what is done is up to others.
package ticket

import "strings"

// The names of the tools, and what is put before them where a server has tools of such names.
const (
	collect = "ticket_collect"
	cancel  = "ticket_cancel"
	list    = "ticket_list"
	prefix  = "coatcheck_"
)

// Names are the names that the ticket tools have beside one server's own.
type Names struct {
	Collect, Cancel string
	// List is "" where tickets cannot be listed.
	List string
}

// NamesFor returns the names with a number of prefixes (see Prefixes), and with or without the
// tool that lists.
func NamesFor(prefixes int, listed bool) Names {
	before := strings.Repeat(prefix, prefixes)
	n := Names{Collect: before + collect, Cancel: before + cancel}
	if listed {
		n.List = before + list
	}
	return n
}

// Has reports whether a tool of this name is one of these.
func (n Names) Has(name string) bool {
	return name != "" && (name == n.Collect || name == n.Cancel || name == n.List)
}

// Prefixes returns how many prefixes the names need beside a server's tool of the name given: more
// than one if the server is itself behind one that gives tickets.
func Prefixes(name string) int {
	n := 1
	for strings.HasPrefix(name, prefix) {
		name = name[len(prefix):]
		n++
	}
	if name == collect || name == cancel || name == list {
		return n
	}
	return 0
}

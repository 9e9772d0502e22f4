// Package ticket is what models and programs read of tickets: the tools that collect, cancel and
// list the calls that go on after their client was answered, the texts of those answers, and
// tools listed so that such an answer fits them. It is pure: what is done is up to others.
package ticket

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

// NamesFor returns the names, prefixed if the server has tools of such names (see IsName), and
// with or without the tool that lists.
func NamesFor(prefixed, listed bool) Names {
	n := Names{Collect: collect, Cancel: cancel}
	if listed {
		n.List = list
	}
	if prefixed {
		n.Collect, n.Cancel = prefix+n.Collect, prefix+n.Cancel
		if listed {
			n.List = prefix + n.List
		}
	}
	return n
}

// Has reports whether a tool of this name is one of these.
func (n Names) Has(name string) bool {
	return name != "" && (name == n.Collect || name == n.Cancel || name == n.List)
}

// IsName reports whether a server that has a tool of this name makes the names prefixed.
func IsName(name string) bool { return name == collect || name == cancel || name == list }

package node

import (
	"os/user"

	"github.com/coatcheck/coatcheck/task"
)

// LocalPrincipal is the one requestor there is where nobody can tell requestors apart, by
// default: the operating-system user (requirements C.10).
func LocalPrincipal() task.Principal {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return task.Principal(u.Username)
	}
	return "local"
}

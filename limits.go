package coatcheck

import (
	"net/http"

	"github.com/coatcheck/coatcheck/internal/limit"
	"github.com/coatcheck/coatcheck/internal/wire"
	"github.com/coatcheck/coatcheck/task"
)

// NoLimit in place of a limit sets none.
const NoLimit = limit.None

type (
	// Policy is all limits that are set: of each principal, of some, of tools, and in all.
	Policy = limit.Policy
	// Limits bound what one principal may have and do, each with its default.
	Limits = limit.Limits
	// ToolLimits bound what is done with one tool.
	ToolLimits = limit.Tool
	// Rate is how often something may be done.
	Rate = limit.Rate
)

// TokenPrincipal is the default of Options.Principal.
func TokenPrincipal(req *http.Request) (p task.Principal, identified bool) {
	return wire.TokenPrincipal(req)
}

package coatcheck_test

import (
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck"
)

// Limits that make no sense are refused, all at once and by name, before anything is opened.
func TestOpenRefusesSenselessLimits(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
	rt, err := coatcheck.Open(t.Context(), server, &coatcheck.Options{
		Database: "nonsense:",
		Limits:   &coatcheck.Policy{Limits: coatcheck.Limits{Polls: 0.5, Creates: coatcheck.Rate{PerSecond: 1}}},
	})
	if err == nil {
		_ = rt.Close(t.Context())
		t.Fatal("it opened")
	}
	for _, says := range []string{"limits: ", "Creates allows nothing", "Polls is 0.5"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("error %q, want %q", err, says)
		}
	}
}

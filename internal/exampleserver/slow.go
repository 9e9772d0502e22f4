package exampleserver

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// step is how long slow_compute works between two progress notifications, at most.
const step = 250 * time.Millisecond

// maxSeconds bounds slow_compute: a week.
const maxSeconds = 7 * 24 * 3600

type slowIn struct {
	Seconds float64 `json:"seconds" jsonschema:"how long to compute; may be fractional"`
	Label   string  `json:"label,omitempty" jsonschema:"a name for this computation, which comes back in the result"`
}

type slowOut struct {
	Label   string  `json:"label"`
	Seconds float64 `json:"seconds"`
	Steps   int     `json:"steps"`
}

// slowCompute waits in steps of equal length. Its result depends on its arguments alone.
func slowCompute(ctx context.Context, req *mcp.CallToolRequest, in slowIn) (*mcp.CallToolResult, any, error) {
	if !(in.Seconds >= 0 && in.Seconds <= maxSeconds) {
		return nil, nil, fmt.Errorf("seconds must be 0 to %d, not %g", maxSeconds, in.Seconds)
	}
	if in.Label == "" {
		in.Label = "slow_compute"
	}
	total := time.Duration(in.Seconds * float64(time.Second))
	steps := max(1, int(math.Ceil(float64(total)/float64(step))))
	token := req.Params.GetProgressToken()

	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for i := 1; i <= steps; i++ {
		timer.Reset(total / time.Duration(steps))
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-timer.C:
		}
		if token == nil {
			continue
		}
		// Progress is a hint: that it cannot be told does not fail the work.
		_ = req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token,
			Progress:      float64(i),
			Total:         float64(steps),
			Message:       fmt.Sprintf("%s: step %d of %d", in.Label, i, steps),
		})
	}
	out := slowOut{Label: in.Label, Seconds: in.Seconds, Steps: steps}
	return text(fmt.Sprintf("%s: done after %d steps in %g s", out.Label, out.Steps, out.Seconds)), out, nil
}

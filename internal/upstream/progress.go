package upstream

import (
	"encoding/json"
	"strconv"

	"github.com/coatcheck/coatcheck/internal/engine"
	"github.com/coatcheck/coatcheck/protocol"
)

// progress shows what a request reports under its own progress token.
type progress struct {
	job   *engine.Job
	token string // as the requestor wrote it; "" if there is none
}

func newProgress(job *engine.Job) *progress {
	return &progress{job: job, token: string(protocol.Get(protocol.Get(job.Request.Params, "_meta"), "progressToken"))}
}

func (p *progress) notified(method string, params json.RawMessage) {
	if method != protocol.MethodProgress || p.token == "" || string(protocol.Get(params, "progressToken")) != p.token {
		return
	}
	var report struct {
		Progress float64
		Total    *float64
		Message  string
	}
	if json.Unmarshal(params, &report) != nil {
		return
	}
	text := strconv.FormatFloat(report.Progress, 'f', -1, 64)
	if report.Total != nil {
		text += "/" + strconv.FormatFloat(*report.Total, 'f', -1, 64)
	}
	if report.Message != "" {
		text += ": " + report.Message
	}
	p.job.Progress(text)
}

package upstream

import (
	"encoding/json"
	"strconv"
	"strings"

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
	if text := describe(params); text != "" {
		p.job.Progress(text)
	}
}

// describe makes the params of a progress notification a text such as "3/8: computing".
func describe(params json.RawMessage) string {
	var report struct {
		Progress float64
		Total    *float64
		Message  string
	}
	if json.Unmarshal(params, &report) != nil {
		return ""
	}
	text := strconv.FormatFloat(report.Progress, 'f', -1, 64)
	switch {
	case report.Total != nil:
		text += "/" + strconv.FormatFloat(*report.Total, 'f', -1, 64)
	case report.Message != "": // without a total the number says little
		return bounded(report.Message)
	}
	if report.Message != "" {
		text += ": " + report.Message
	}
	return bounded(text)
}

// maxMessage bounds what a server may put into a statusMessage, in bytes.
const maxMessage = 4 << 10

func bounded(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "…"
}

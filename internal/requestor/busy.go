package requestor

import (
	"encoding/json"
	"time"

	"github.com/coatcheck/coatcheck/protocol"
	"github.com/coatcheck/coatcheck/task"
)

// maxBusy bounds how long is waited at a time where the other side refuses for a limit.
const maxBusy = time.Minute

// busy is how long to wait before the other side is asked about its task again, if the answer is
// a refusal for a limit on asking. Any other is what became of the task.
func busy(answer task.Outcome) (wait time.Duration, ok bool) {
	var refused struct {
		Code int64 `json:"code"`
		Data struct {
			Limit        string  `json:"limit"`
			RetryAfterMs float64 `json:"retryAfterMs"`
		} `json:"data"`
	}
	if answer.Error == nil || json.Unmarshal(answer.Error, &refused) != nil ||
		refused.Code != protocol.CodeLimitExceeded || !(refused.Data.RetryAfterMs > 0) {
		return 0, false
	}
	switch refused.Data.Limit {
	case "gets", "misses", "waits", "lists":
		return time.Duration(min(refused.Data.RetryAfterMs, float64(maxBusy.Milliseconds())) * float64(time.Millisecond)), true
	}
	return 0, false
}

package peers

import (
	"context"
	"sync"
	"testing"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"
)

// mcpGoUser answers mcp-go's client in its user's place.
type mcpGoUser struct {
	meanwhile func(ctx context.Context) // called with a question open

	mu    sync.Mutex
	asked []*mcp.Meta // the metadata of each question; nil for sampling, where mcp-go drops it
}

func (u *mcpGoUser) Elicit(ctx context.Context, request mcp.ElicitationRequest) (*mcp.ElicitationResult, error) {
	u.heard(request.Params.Meta)
	u.meanwhile(ctx)
	return &mcp.ElicitationResult{ElicitationResponse: mcp.ElicitationResponse{
		Action: mcp.ElicitationResponseActionAccept, Content: map[string]any{"confirm": true}}}, nil
}

func (u *mcpGoUser) CreateMessage(ctx context.Context, _ mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
	u.heard(nil)
	u.meanwhile(ctx)
	return &mcp.CreateMessageResult{Model: "none", SamplingMessage: mcp.SamplingMessage{
		Role: mcp.RoleAssistant, Content: mcp.NewTextContent("Because.")}}, nil
}

func (u *mcpGoUser) heard(meta *mcp.Meta) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asked = append(u.asked, meta)
}

// FLOW-2 with mcp-go's client: the question reaches its handler during tasks/result.
func TestMCPGoIsAsked(t *testing.T) {
	t.Parallel()
	overEach(t, exampleServer, func(t *testing.T, server target) {
		for tool, call := range map[string]struct {
			args   map[string]any
			text   string
			marked bool
		}{
			"confirm_delete": {map[string]any{"filename": "h.txt"}, "Deleted h.txt.", true},
			"ask_model":      {map[string]any{"prompt": "Why?"}, "Because.", false},
		} {
			t.Run(tool, func(t *testing.T) {
				user := &mcpGoUser{}
				c := connectMCPGo(t, server, client.WithElicitationHandler(user), client.WithSamplingHandler(user))
				created := make(chan mcp.Task, 1)
				user.meanwhile = func(ctx context.Context) {
					task := <-created
					got, err := c.GetTask(ctx, c.get(task.TaskId))
					if err != nil || got.Status != mcp.TaskStatusInputRequired {
						t.Errorf("tasks/get with the question open: %+v, %v", got, err)
					}
				}
				task := c.create(t, tool, call.args)
				created <- task
				result, err := c.result(t.Context(), task.TaskId)
				if err != nil {
					t.Fatal(err)
				}
				user.mu.Lock()
				defer user.mu.Unlock()
				if len(user.asked) != 1 {
					t.Fatalf("asked %d times", len(user.asked))
				}
				if call.marked {
					equal(t, "metadata of the question", user.asked[0], map[string]any{relatedTask: map[string]any{"taskId": task.TaskId}})
				}
				equal(t, "content", result.Content, []any{map[string]any{"type": "text", "text": call.text}})
				last, err := c.GetTask(t.Context(), c.get(task.TaskId))
				if err != nil || last.Status != mcp.TaskStatusCompleted {
					t.Errorf("at the end: %+v, %v", last, err)
				}
			})
		}
	})
}

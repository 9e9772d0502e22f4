// Command host calls slow tools and survives being killed: start it, kill it while the tools
// run, start it again, and it collects what it called before.
//
//	go run ./cmd/coatcheck gateway --single-user -- go run ./cmd/coatcheck example-server
//	go run ./examples/host http://127.0.0.1:8080/mcp   # Ctrl-C, and again
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
)

func main() {
	seconds := flag.Int("seconds", 20, "how long the first tool takes; each further one takes half as long again")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: host [-seconds N] URL")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, flag.Arg(0), *seconds); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url string, seconds int) error {
	ledger, err := client.OpenLedger("host.ledger")
	if err != nil {
		return err
	}
	defer ledger.Close()
	c := mcp.NewClient(&mcp.Implementation{Name: "example-host", Version: "1.0.0"}, nil)
	s, err := client.Connect(ctx, c, &mcp.StreamableClientTransport{Endpoint: url}, &client.Options{Ledger: ledger})
	if err != nil {
		return err
	}
	defer s.Close()

	tasks, err := s.Resume(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%d tasks of an earlier run\n", len(tasks))
	if len(tasks) == 0 {
		for i := range 3 {
			t, err := s.CallTool(ctx, &mcp.CallToolParams{
				Name: "slow_compute", Arguments: map[string]any{"seconds": seconds + i*seconds/2, "label": fmt.Sprintf("job %d", i+1)},
			}, nil)
			if err != nil {
				return err
			}
			fmt.Println("called: task", t.ID())
			tasks = append(tasks, t)
		}
	}
	for _, t := range tasks {
		said := ""
		for u := range t.Updates(ctx) {
			if now := fmt.Sprintf("%s: %s", u.Status, u.Message); now != said {
				fmt.Println(now)
				said = now
			}
		}
		result, err := t.Wait(ctx)
		if ctx.Err() != nil || errors.Is(err, client.ErrClosed) {
			return err // the tasks go on, and the ledger has them
		}
		if err != nil {
			fmt.Printf("task %s: %v\n", t.ID(), err)
			continue
		}
		for _, content := range result.Content {
			if text, ok := content.(*mcp.TextContent); ok {
				fmt.Println(text.Text)
			}
		}
	}
	return nil
}

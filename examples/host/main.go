// Command host calls slow tools and survives being killed: start it, kill it while the tools
// run, start it again, and it collects what it called before.
//
//	go run ./cmd/coatcheck gateway --single-user -- go run ./cmd/coatcheck example-server
//	go run ./examples/host http://127.0.0.1:8080/mcp   # Ctrl-C, and again
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coatcheck/coatcheck/client"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: host URL")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1], "host.ledger"); err != nil && !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url, file string) error {
	ledger, err := client.OpenLedger(file)
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
				Name: "slow_compute", Arguments: map[string]any{"seconds": 20 + 10*i, "label": fmt.Sprintf("job %d", i+1)},
			}, nil)
			if err != nil {
				return err
			}
			fmt.Println("called: task", t.ID())
			tasks = append(tasks, t)
		}
	}
	for _, t := range tasks {
		for u := range t.Updates(ctx) {
			fmt.Printf("%s %s\n", u.Status, u.Message)
		}
		result, err := t.Wait(ctx)
		if err != nil {
			return err
		}
		for _, content := range result.Content {
			if text, ok := content.(*mcp.TextContent); ok {
				fmt.Println(text.Text)
			}
		}
	}
	return nil
}

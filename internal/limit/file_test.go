package limit

import (
	"errors"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/coatcheck/coatcheck/task"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Policy
	}{
		{"nothing", "", Policy{}},
		{"a comment", "# nothing\n", Policy{}},
		{"empty sections", "default:\nin_all:\ntools:\n  x:\nprincipals: # none\n",
			Policy{Tools: map[string]Tool{"x": {}}, Principals: map[task.Principal]Limits{}}},
		{"all of one principal", `
default:
  running: 1
  queued: 2
  tasks: 3
  bytes: 4GiB
  request: 5 KiB
  result: 6
  max_ttl: 1h30m
  inputs: 7
  waits: 8
  creates: 9/s burst 10
  gets: 0.5/s burst 1
  lists: {per_second: 1e-1, burst: 3}
  misses: none
  polls: 1.5
`, Policy{Limits: Limits{
			Running: 1, Queued: 2, Tasks: 3, Bytes: 4 << 30, Request: 5 << 10, Result: 6, MaxTTL: 90 * time.Minute, Inputs: 7, Waits: 8,
			Creates: Rate{9, 10}, Gets: Rate{0.5, 1}, Lists: Rate{0.1, 3}, Misses: Rate{PerSecond: None}, Polls: 1.5,
		}}},
		{"no limits", `
default: {running: none, queued: none, tasks: none, bytes: none, request: none, result: none, max_ttl: none, inputs: none,
  waits: none, creates: none, gets: none, lists: none, misses: none, polls: none}
in_all: {running: none, queued: none}
`, Policy{Limits: Limits{
			Running: None, Queued: None, Tasks: None, Bytes: None, Request: None, Result: None, MaxTTL: None, Inputs: None, Waits: None,
			Creates: Rate{PerSecond: None}, Gets: Rate{PerSecond: None}, Lists: Rate{PerSecond: None}, Misses: Rate{PerSecond: None}, Polls: None,
		}, RunningInAll: None, QueuedInAll: None}},
		{"no queue", "default: {queued: 0}", Policy{Limits: Limits{NoQueue: true}}},
		{"in all", "in_all: {running: 5, queued: \"6\"}", Policy{RunningInAll: 5, QueuedInAll: 6}},
		{"tools", "tools:\n  render: {running: 1, request: 2B, result: 3TiB, max_ttl: 4s, inputs: 5, creates: 6/s burst 7}\n  \"a: b\": {running: none}\n",
			Policy{Tools: map[string]Tool{
				"render": {Running: 1, Request: 2, Result: 3 << 40, MaxTTL: 4 * time.Second, Inputs: 5, Creates: Rate{6, 7}},
				"a: b":   {Running: None},
			}}},
		{"principals", `
principals:
  alice: {running: 1}
  https://issuer|bob|: {running: 2}
  {issuer: https://issuer, subject: a|b, client: "100%"}: {running: 3}
  ? subject: carol
  : running: 4
  7: {running: 5}
  "": {running: 6}
`, Policy{Principals: map[task.Principal]Limits{
			"alice":                       {Running: 1},
			"https://issuer|bob|":         {Running: 2},
			"https://issuer|a%7Cb|100%25": {Running: 3},
			"carol":                       {Running: 4},
			"7":                           {Running: 5},
			"":                            {Running: 6},
		}}},
		{"a section used twice", "default: &few {running: 1}\nprincipals: {alice: *few}\n",
			Policy{Limits: Limits{Running: 1}, Principals: map[task.Principal]Limits{"alice": {Running: 1}}}},
	} {
		got, err := Parse([]byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		} else if diff := cmp.Diff(&c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string][]string{
		"defaults: {}":                                        {`line 1: defaults: unknown key; there are default, in_all, principals, tools`},
		"default:\n  runnig: 1\n  bytes: 1 TB":                {`line 2: default.runnig: unknown key`, `line 3: default.bytes: "1 TB" is no size`},
		"default: {running: -1}":                              {`line 1: default.running: "-1" is not a whole number of at least 1`},
		"default: {running: 0}":                               {`default.running: "0" is not`},
		"default: {running: 1.5}":                             {`default.running: "1.5" is not`},
		"default: {running: +1}":                              {`default.running: "+1" is not`},
		"default: {running: true}":                            {`default.running: "true" is not`},
		"default: {running: None}":                            {`default.running: "None" is not`},
		"default: {running: }":                                {`line 1: default.running: has no value`},
		"default: {running: ~}":                               {`default.running: has no value`},
		"default: {running: [1]}":                             {`default.running: must be a single value`},
		"default: {running: 99999999999999999999}":            {`default.running: "99999999999999999999" is not`},
		"default: {queued: -1}":                               {`default.queued: "-1" is not a whole number of at least 1; or 0, with which no task waits`},
		"default: {bytes: 0}":                                 {`default.bytes: "0" is not between 1 byte and 8 EiB`},
		"default: {bytes: -5}":                                {`default.bytes: "-5" is no size`},
		"default: {bytes: 1.5GiB}":                            {`default.bytes: "1.5GiB" is no size`},
		"default: {bytes: 8388608TiB}":                        {`default.bytes: "8388608TiB" is not between`},
		"default: {bytes: 9223372036854775808}":               {`default.bytes: "9223372036854775808" is not between`},
		"default: {max_ttl: 24}":                              {`default.max_ttl: "24" is no duration`},
		"default: {max_ttl: 0s}":                              {`default.max_ttl: "0s" is no duration`},
		"default: {max_ttl: -1h}":                             {`default.max_ttl: "-1h" is no duration`},
		"default: {max_ttl: 5us}":                             {`default.max_ttl: is 5µs, and must be at least 1ms`},
		"default: {creates: 20/s}":                            {`default.creates: "20/s" is no rate`},
		"default: {creates: 20}":                              {`default.creates: "20" is no rate`},
		"default: {creates: -20/s burst 3}":                   {`is no rate`},
		"default: {creates: 0/s burst 3}":                     {`default.creates: "0" per second is not a number above 0`},
		"default: {creates: 1/s burst 0}":                     {`default.creates: its burst "0" is not a whole number`},
		"default: {creates: {per_second: 1}}":                 {`default.creates: needs both per_second and burst`},
		"default: {creates: {per_second: .nan, burst: 1}}":    {`default.creates.per_second: ".nan" per second is not`},
		"default: {creates: {per_second: NaN, burst: 1}}":     {`default.creates.per_second: "NaN" per second is not`},
		"default: {creates: {per_second: Inf, burst: 1}}":     {`default.creates.per_second: "Inf" per second is not`},
		"default: {creates: {per_second: 1, burst: 1, x: 1}}": {`default.creates.x: unknown key; there are burst, per_second`},
		"default: {creates: [1, 2]}":                          {`default.creates: must be a single value`},
		"default: {polls: 0.5}":                               {`default.polls: must be at least 1`},
		"default: {polls: NaN}":                               {`default.polls: is NaN, and must be at least 1`},
		"default: {polls: Inf}":                               {`default.polls: is +Inf`},
		"default: {polls: often}":                             {`default.polls: "often" is no number`},
		"default: 5":                                          {`line 1: default: must have keys with values`},
		"default: []":                                         {`default: must have keys with values`},
		"[]":                                                  {`line 1: the file: must have keys with values`},
		"default: {[a]: 1}":                                   {`default: a key must be a word`},
		"default:\n  running: 1\n  running: 2":                {`line 3: default.running: is there already, in line 2`},
		"default: {}\ndefault: {}":                            {`line 2: default: is there already, in line 1`},
		"in_all: {tasks: 1}":                                  {`in_all.tasks: unknown key; there are queued, running`},
		"in_all: {queued: 0}":                                 {`in_all.queued: "0" is not`},
		"tools: {render: {tasks: 1}}":                         {`tools.render.tasks: unknown key`},
		"tools: {render: {max_ttl: none}}":                    {`tools.render.max_ttl: "none" is no duration`},
		"tools: {render: 1}":                                  {`tools.render: must have keys`},
		"tools: {\"\": {}}":                                   {`tools: a tool's name is missing`},
		"tools: {a: {}, a: {}}":                               {`tools.a: is there already`},
		"principals: {alice: {runnig: 1}}":                    {`principals.alice.runnig: unknown key`},
		"principals: {~: {}}":                                 {`principals: a principal is a name, or {issuer, subject, client}`},
		"principals: {[alice]: {}}":                           {`principals: a principal is a name, or`},
		"principals: {{}: {}}":                                {`principals: names nobody`},
		"principals: {{sub: x}: {}}":                          {`principals.sub: unknown key; there are client, issuer, subject`},
		"principals: {{subject: \"\"}: {}}":                   {`principals.subject: is empty: leave it out`},
		"principals:\n  alice: {}\n  {subject: alice}: {}":    {`line 3: principals.alice: is there already`},
		"a: 1\n---\nb: 2":                                     {`this is not one YAML document`},
		"default: {":                                          {`this is not one YAML document`},
		"\xff":                                                {`this is not one YAML document`},
		"default: *few":                                       {`this is not one YAML document`},
	} {
		got, err := Parse([]byte(text))
		if err == nil {
			t.Errorf("%q: %+v, want an error that says %q", text, got, want)
			continue
		}
		for _, says := range want {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%q: error %q, want %q", text, err, says)
			}
		}
		if n := strings.Count(err.Error(), "\n") + 1; n != len(want) {
			t.Errorf("%q: %d errors, want %d: %v", text, n, len(want), err)
		}
	}
}

// The example is understood as it is, sets what it says are the defaults, and names every key.
func TestExampleFile(t *testing.T) {
	text, err := os.ReadFile("../../docs/limits.yml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	want := defaults
	want.MaxTTL = 24 * time.Hour // the gateway's
	if diff := cmp.Diff(want, p.Limits); diff != "" {
		t.Errorf("the default section is not that of the code (-code +example):\n%s", diff)
	}
	running, queued := (*Policy)(nil).InAll()
	if p.RunningInAll != running || p.QueuedInAll != queued {
		t.Errorf("in_all is %d and %d, want %d and %d", p.RunningInAll, p.QueuedInAll, running, queued)
	}
	if len(p.Tools) == 0 || len(p.Principals) < 2 {
		t.Errorf("tools %v, principals %v", p.Tools, p.Principals)
	}
	// Nor does the page leave a limit out.
	page, err := os.ReadFile("../../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	general, _, _ := strings.Cut(string(text), "\ntools:")
	for _, key := range regexp.MustCompile(`(?m)^  ([a-z_]+):`).FindAllStringSubmatch(general, -1) {
		if !strings.Contains(string(page), "| `"+key[1]+"` |") {
			t.Errorf("docs/limits.md does not name %s", key[1])
		}
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy *Policy
		want   []string
	}{
		{"none", nil, nil},
		{"the defaults", &Policy{Limits: defaults}, nil},
		{"no limits", &Policy{Limits: Limits{Running: None, Creates: Rate{PerSecond: None}, Polls: None, MaxTTL: None}}, nil},
		{"no burst", &Policy{Limits: Limits{Creates: Rate{PerSecond: 1}}}, []string{"Creates allows nothing: the burst must be at least 1"}},
		{"a burst below zero", &Policy{Limits: Limits{Gets: Rate{1, -1}}}, []string{"Gets allows nothing"}},
		{"only a burst", &Policy{Limits: Limits{Lists: Rate{Burst: 3}}}, []string{"Lists is 0 per second"}},
		{"no numbers", &Policy{Limits: Limits{Misses: Rate{math.NaN(), 1}, Polls: math.NaN()}},
			[]string{"Misses is NaN per second", "Polls is NaN"}},
		{"endless", &Policy{Limits: Limits{Misses: Rate{math.Inf(1), 1}, Polls: math.Inf(1)}}, []string{"Misses is +Inf", "Polls is +Inf"}},
		{"endless below zero", &Policy{Limits: Limits{Misses: Rate{math.Inf(-1), 1}}}, []string{"Misses is -Inf"}},
		{"slowing the polite", &Policy{Limits: Limits{Polls: 0.9}}, []string{"Polls is 0.9"}},
		{"a lifetime that is none", &Policy{Limits: Limits{MaxTTL: time.Microsecond}}, []string{"MaxTTL is 1µs, and must be at least 1ms"}},
		{"a queue and none", &Policy{Limits: Limits{NoQueue: true, Queued: 3}}, []string{"Queued: no task waits with NoQueue"}},
		{"a principal", &Policy{Principals: map[task.Principal]Limits{"b": {Polls: 0.1}, "a": {MaxTTL: 1}}},
			[]string{`Principals["a"].MaxTTL is 1ns`, `Principals["b"].Polls is 0.1`}},
		{"a tool", &Policy{Tools: map[string]Tool{"x": {MaxTTL: None, Creates: Rate{PerSecond: 2}}}},
			[]string{`Tools["x"].MaxTTL of a tool can only shorten`, `Tools["x"].Creates allows nothing`}},
	} {
		err := c.policy.Validate()
		var got []string
		if joined, ok := errors.AsType[interface {
			error
			Unwrap() []error
		}](err); ok {
			for _, e := range joined.Unwrap() {
				got = append(got, e.Error())
			}
		}
		same := len(got) == len(c.want)
		for i := 0; same && i < len(got); i++ {
			same = strings.HasPrefix(got[i], c.want[i])
		}
		if !same {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Who is given a queue has one, also where others have none.
func TestQueueOfOnesOwn(t *testing.T) {
	p := &Policy{Limits: Limits{NoQueue: true}, Principals: map[task.Principal]Limits{"alice": {Queued: 5}, "bob": {Running: 1}}}
	if l := p.For("alice"); l.NoQueue || l.Queued != 5 {
		t.Errorf("alice: %+v", l)
	}
	if !p.For("bob").NoQueue || !p.For("carol").NoQueue {
		t.Error("others have a queue")
	}
	p = &Policy{Limits: Limits{Queued: 5}, Principals: map[task.Principal]Limits{"alice": {NoQueue: true}}}
	if !p.For("alice").NoQueue || p.For("bob").NoQueue {
		t.Error("alice has a queue, or bob has none")
	}
}

// What Parse takes makes sense, and what it does not take it says in lines.
func FuzzPolicy(f *testing.F) {
	for _, text := range []string{
		"", "default: {running: 1, creates: 20/s burst 200, lists: {per_second: 1, burst: 2}}", "in_all: {queued: none}",
		"tools: {x: {max_ttl: 1h, request: 1MiB}}", "principals: {{subject: x}: {polls: 2}, a|b|c: {queued: 0}}",
		"a: &a [*a]", "default: &a {running: *a}", "<<: {default: }", "? {a: b}\n: c", "default: !!binary x", "\x00", "a\n---\nb",
		"principals: &p {*p : 1}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := Parse(text)
		if (p == nil) == (err == nil) {
			t.Fatalf("%+v, %v", p, err)
		}
		if err != nil {
			return
		}
		if err := p.Validate(); err != nil {
			t.Errorf("nonsense was taken: %v", err)
		}
		l := p.Limits
		for name, n := range map[string]int64{
			"running": int64(l.Running), "queued": int64(l.Queued), "tasks": int64(l.Tasks), "bytes": l.Bytes, "request": l.Request,
			"result": l.Result, "max_ttl": int64(l.MaxTTL), "inputs": int64(l.Inputs), "waits": int64(l.Waits),
		} {
			if n < None {
				t.Errorf("%s is %d", name, n)
			}
		}
	})
}

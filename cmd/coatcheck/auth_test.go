package main

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coatcheck/coatcheck/internal/authn"
	"github.com/coatcheck/coatcheck/internal/receiver"
)

func TestAuthFlags(t *testing.T) {
	with := func(edit func(*authn.Config)) (c authn.Config) {
		edit(&c)
		return c
	}
	for _, tc := range []struct {
		line string
		want authn.Config
	}{
		{"http://x.test/", authn.Config{}},
		{"--auth none http://x.test/", authn.Config{}},
		{"--auth tokens FILE -- cmd", with(func(c *authn.Config) { c.Mode, c.TokenFile = authn.Tokens, "FILE" })},
		{"--auth=tokens:a:b http://x.test/", with(func(c *authn.Config) { c.Mode, c.TokenFile = authn.Tokens, "a:b" })},
		{"--auth tokens FILE --scope a --scope b,c http://x.test/", with(func(c *authn.Config) {
			c.Mode, c.TokenFile, c.Scopes = authn.Tokens, "FILE", []string{"a", "b,c"}
		})},
		{"--auth header X-User --trusted-proxy 10.1.2.3/8,::1 --trusted-proxy ::ffff:192.0.2.0/120 http://x.test/", with(func(c *authn.Config) {
			c.Mode, c.Header = authn.Header, "X-User"
			c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("192.0.2.0/24")}
		})},
		{"--auth jwt --issuer https://i.test --issuer https://j.test http://x.test/", with(func(c *authn.Config) {
			c.Mode, c.Issuers, c.ClockSkew = authn.JWT, []string{"https://i.test", "https://j.test"}, 30*time.Second
		})},
		{"--auth jwt --issuer https://i.test --audience a --jwks k.json --algorithms RS256,EdDSA --clock-skew 0s --resource https://r.test/mcp -- cmd", with(func(c *authn.Config) {
			c.Mode, c.Issuers, c.Audiences, c.JWKS = authn.JWT, []string{"https://i.test"}, []string{"a"}, "k.json"
			c.Algorithms, c.ClockSkew, c.Resource = []string{"RS256", "EdDSA"}, -1, "https://r.test/mcp"
		})},
	} {
		cfg, err := parseGateway(t, strings.Fields(tc.line)...)
		if err != nil || !reflect.DeepEqual(cfg.Auth, tc.want) {
			t.Errorf("%s\ngot  %+v, %v\nwant %+v", tc.line, cfg.Auth, err, tc.want)
		}
	}
	cfg, err := parseGateway(t, strings.Fields("--auth tokens F --operation-scope create=a --operation-scope read=b --upstream-token caller --insecure http://x.test/")...)
	if err != nil || cfg.UpstreamToken != "caller" || !cfg.Insecure ||
		!reflect.DeepEqual(cfg.Scopes, map[receiver.Operation]string{receiver.Create: "a", receiver.Read: "b"}) {
		t.Errorf("%+v, %v", cfg, err)
	}
	for line, want := range map[string]string{
		"--auth":        "expected mode",
		"--auth tokens": "expected file",
		"--auth header --trusted-proxy ::1 -- cmd":      "expected name",
		"--auth=tokens -- cmd":                          "tokens FILE",
		"--auth=tokens: -- cmd":                         "tokens FILE",
		"--auth jwt:x -- cmd":                           "jwt takes nothing",
		"--auth magic -- cmd":                           "magic",
		"--auth jwt -- cmd":                             "--issuer",
		"--auth header X-User -- cmd":                   "--trusted-proxy",
		"--issuer https://i.test -- cmd":                "--issuer is of no use",
		"--auth tokens F --audience a -- cmd":           "--audience is of no use",
		"--scope a -- cmd":                              "--scope is of no use",
		"--operation-scope read=a -- cmd":               "--operation-scope is of no use",
		"--auth tokens F --single-user -- cmd":          "--single-user",
		"--auth tokens F --stdio -- cmd":                "--stdio",
		"--trusted-proxy localhost -- cmd":              "no address",
		"--auth tokens F --upstream-token F2 -- cmd":    "--upstream-token",
		"--auth tokens F --operation-scope list=a -- x": "--operation-scope list=a",
	} {
		if _, err := parseGateway(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

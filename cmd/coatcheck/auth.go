package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/coatcheck/coatcheck/internal/authn"
	"github.com/coatcheck/coatcheck/internal/gateway"
	"github.com/coatcheck/coatcheck/internal/receiver"
)

// authFlags are the flags of a gateway about who its requestors are.
type authFlags struct {
	Auth           authMode          `placeholder:"MODE" help:"How HTTP requestors say who they are: jwt, tokens FILE (made by coatcheck token), header NAME (of a trusted proxy), or none, the default."`
	Issuer         []string          `sep:"none" placeholder:"URL" help:"jwt: who signs tokens, exactly as they say it; may be repeated."`
	Audience       []string          `sep:"none" placeholder:"NAME" help:"jwt: for whom a token must be, one of them if repeated. Default: the --resource."`
	JWKS           string            `name:"jwks" placeholder:"URL|FILE" help:"jwt: the issuer's keys. Default: where the issuer's metadata says."`
	Algorithms     []string          `placeholder:"ALG,..." help:"jwt: how tokens may be signed. Default: RS, PS and ES with 256, 384 and 512 bits, EdDSA."`
	ClockSkew      time.Duration     `default:"30s" help:"jwt: how far the issuer's clock may differ."`
	Resource       string            `placeholder:"URL" help:"jwt: the URL by which clients know this server. Default: where it listens."`
	Scope          []string          `sep:"none" placeholder:"SCOPE" help:"A scope that every token must have; may be repeated."`
	OperationScope map[string]string `mapsep:"none" placeholder:"OPERATION=SCOPE" help:"A scope that an operation on tasks needs: create, read or cancel; may be repeated."`
	TrustedProxy   []string          `placeholder:"CIDR" help:"Addresses of proxies that are believed who their client is (X-Forwarded-For, --auth header); may be repeated."`
	UpstreamToken  string            `placeholder:"caller|none|FILE" help:"What authorization the server at URL is shown: the caller's, none, or the bearer token in a file. Default: none with --auth, else the caller's."`
	Insecure       bool              `help:"Serve without --auth on an address that others can reach; fetch an issuer's keys over http."`
}

// authMode is the value of --auth: of one word, or two.
type authMode struct {
	mode  authn.Mode
	value string // the file or the header
}

// Decode implements kong.MapperValue.
func (a *authMode) Decode(ctx *kong.DecodeContext) error {
	var word string
	joined := ctx.Scan.Peek().Type == kong.FlagValueToken // --auth=tokens:FILE
	if err := ctx.Scan.PopValueInto("mode", &word); err != nil {
		return err
	}
	mode, value, ok := strings.Cut(word, ":")
	switch mode {
	case "none", "jwt":
		if ok {
			return fmt.Errorf("%s takes nothing", mode)
		}
	case "tokens", "header":
		if !ok && !joined {
			if err := ctx.Scan.PopValueInto(map[string]string{"tokens": "file", "header": "name"}[mode], &value); err != nil {
				return err
			}
		}
		if value == "" {
			return fmt.Errorf("%s takes one more: tokens FILE, header NAME", mode)
		}
	default:
		return fmt.Errorf("%q is not jwt, tokens FILE, header NAME or none", mode)
	}
	if mode == "none" {
		mode = ""
	}
	*a = authMode{authn.Mode(mode), value}
	return nil
}

// operations are what --operation-scope takes.
var operations = []receiver.Operation{receiver.Create, receiver.Read, receiver.Cancel}

// apply sets what the flags say.
func (f *authFlags) apply(cfg *gateway.Config) error {
	mode := f.Auth.mode
	cfg.Auth = authn.Config{Mode: mode, Scopes: f.Scope}
	switch mode {
	case authn.JWT:
		cfg.Auth.Issuers, cfg.Auth.Audiences, cfg.Auth.JWKS = f.Issuer, f.Audience, f.JWKS
		cfg.Auth.Algorithms, cfg.Auth.Resource = f.Algorithms, f.Resource
		if cfg.Auth.ClockSkew = f.ClockSkew; f.ClockSkew == 0 {
			cfg.Auth.ClockSkew = -1
		}
		if len(f.Issuer) == 0 {
			return errors.New("--auth jwt needs an --issuer")
		}
	case authn.Tokens:
		cfg.Auth.TokenFile = f.Auth.value
	case authn.Header:
		cfg.Auth.Header = f.Auth.value
		if len(f.TrustedProxy) == 0 {
			return errors.New("--auth header needs a --trusted-proxy: without one anybody could set the header")
		}
	}
	for _, said := range []struct {
		flag string
		set  bool
		only []authn.Mode
	}{
		{"--issuer", len(f.Issuer) > 0, []authn.Mode{authn.JWT}},
		{"--audience", len(f.Audience) > 0, []authn.Mode{authn.JWT}},
		{"--jwks", f.JWKS != "", []authn.Mode{authn.JWT}},
		{"--algorithms", len(f.Algorithms) > 0, []authn.Mode{authn.JWT}},
		{"--resource", f.Resource != "", []authn.Mode{authn.JWT}},
		{"--scope", len(f.Scope) > 0, []authn.Mode{authn.JWT, authn.Tokens}},
		{"--operation-scope", len(f.OperationScope) > 0, []authn.Mode{authn.JWT, authn.Tokens}},
	} {
		if said.set && !slices.Contains(said.only, mode) {
			return fmt.Errorf("%s is of no use without --auth %s", said.flag, said.only[0])
		}
	}
	if mode != authn.None && cfg.Stdio != nil {
		return errors.New("--auth is for HTTP; over --stdio there is one requestor")
	}
	if mode != authn.None && cfg.SingleUser {
		return errors.New("--single-user says that all requestors are one, and --auth that they are not")
	}
	for _, cidr := range f.TrustedProxy {
		prefix, err := parsePrefix(cidr)
		if err != nil {
			return fmt.Errorf("--trusted-proxy: %w", err)
		}
		cfg.Auth.TrustedProxies = append(cfg.Auth.TrustedProxies, prefix)
	}
	if len(f.OperationScope) > 0 {
		cfg.Scopes = map[receiver.Operation]string{}
	}
	for name, scope := range f.OperationScope {
		operation := receiver.Operation(name)
		if !slices.Contains(operations, operation) || scope == "" {
			return fmt.Errorf("--operation-scope %s=%s: it is create=SCOPE, read=SCOPE or cancel=SCOPE", name, scope)
		}
		cfg.Scopes[operation] = scope
	}
	if f.UpstreamToken != "" && cfg.URL == "" {
		return errors.New("--upstream-token is for a server with a URL")
	}
	cfg.UpstreamToken, cfg.Insecure = f.UpstreamToken, f.Insecure
	return nil
}

// parsePrefix reads a network, or one address.
func parsePrefix(s string) (netip.Prefix, error) {
	if at, err := netip.ParseAddr(s); err == nil {
		at = at.Unmap()
		return netip.PrefixFrom(at, at.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		return prefix, fmt.Errorf("%q is no address and no network such as 10.0.0.0/8", s)
	}
	if at := prefix.Addr(); at.Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(at.Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked(), nil
}

// tokenCmd is "coatcheck token".
type tokenCmd struct {
	Name    string        `arg:"" help:"Whom the token is for."`
	Client  string        `placeholder:"NAME" help:"The program that will use it, if its tasks are to be its own."`
	Scope   []string      `sep:"none" help:"A scope that it has; may be repeated."`
	Expires time.Duration `placeholder:"720h" help:"How long it is valid. Default: until its line is taken out of the file."`
}

// Help implements kong.HelpProvider.
func (*tokenCmd) Help() string {
	return `Prints a new token on stdout, once, and on stderr its line for the file of --auth tokens, which
holds only a digest of it:

  coatcheck token alice >alice.token 2>>tokens
  coatcheck gateway --auth tokens tokens -- some-server
  coatcheck call --token-file alice.token http://127.0.0.1:8080/mcp some-tool`
}

// Run makes a token.
func (c *tokenCmd) Run(std streams) error {
	t := authn.Token{Subject: c.Name, Client: c.Client, Scopes: c.Scope}
	switch {
	case c.Expires < 0:
		return errors.New("--expires is over before it begins")
	case c.Expires > 0:
		t.Expires = time.Now().Add(c.Expires)
	}
	t, secret, err := authn.NewToken(t)
	if err != nil {
		return fmt.Errorf("such a token cannot be in a file: %w", err)
	}
	if _, err := fmt.Fprintln(std.out, secret); err != nil {
		return err
	}
	_, err = fmt.Fprintln(std.err, t)
	return err
}

package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"github.com/coatcheck/coatcheck/internal/gateway"
)

// guardFlags say how the gateway's HTTP endpoint guards itself.
type guardFlags struct {
	AllowOrigin    []string `sep:"none" placeholder:"ORIGIN" help:"Let web pages of this origin use the endpoint, such as https://app.example; may be repeated. Pages of the endpoint's own origin may always; those of a loopback address may if they reach the endpoint at one."`
	AllowHost      []string `sep:"none" placeholder:"NAME" help:"Host name, with a port or for any, under which the endpoint may be reached; may be repeated. Default: any, but at a loopback address only its own names."`
	MaxConnections int      `default:"4096" help:"How many connections may be open; more wait."`
	MaxSessions    int      `default:"64" help:"How many HTTP sessions may have a process of the command. One requestor, known by its token or by an address elsewhere, may have a quarter."`
	TLSCert        string   `name:"tls-cert" placeholder:"FILE" help:"Serve over TLS with this certificate (PEM), and those that vouch for it. Read again when it changes."`
	TLSKey         string   `name:"tls-key" placeholder:"FILE" help:"Key of --tls-cert (PEM)."`
	TLSClientCA    string   `name:"tls-client-ca" placeholder:"FILE" help:"Ask clients for a certificate that one of these authorities (PEM) vouches for."`
	TLSMin         string   `name:"tls-min" placeholder:"1.3" help:"Lowest version of TLS: 1.3, or 1.2."`
}

// guard checks the flags. With stdio there is no endpoint to guard.
func (f *guardFlags) guard(stdio bool) (gateway.Guard, error) {
	g := gateway.Guard{Hosts: f.AllowHost, Connections: f.MaxConnections, Sessions: f.MaxSessions}
	if stdio && (len(f.AllowOrigin) > 0 || len(f.AllowHost) > 0 || f.TLSCert+f.TLSKey+f.TLSClientCA+f.TLSMin != "") {
		return g, errors.New("--stdio has no endpoint for --allow-origin, --allow-host or TLS")
	}
	for _, text := range f.AllowOrigin {
		origin, err := gateway.ParseOrigin(text)
		if err != nil {
			return g, fmt.Errorf("--allow-origin %q: %w", text, err)
		}
		g.Origins = append(g.Origins, origin)
	}
	switch {
	case g.Connections < 1:
		return g, errors.New("--max-connections must be at least 1")
	case g.Sessions < 1:
		return g, errors.New("--max-sessions must be at least 1")
	case (f.TLSCert == "") != (f.TLSKey == ""):
		return g, errors.New("--tls-cert and --tls-key need each other")
	case f.TLSCert == "" && f.TLSClientCA+f.TLSMin != "":
		return g, errors.New("--tls-client-ca and --tls-min need --tls-cert and --tls-key")
	case f.TLSCert == "":
		return g, nil
	}
	g.TLS = &gateway.TLS{Cert: f.TLSCert, Key: f.TLSKey, ClientCA: f.TLSClientCA}
	switch f.TLSMin {
	case "", "1.3":
		g.TLS.Min = tls.VersionTLS13
	case "1.2":
		g.TLS.Min = tls.VersionTLS12
	default:
		return g, fmt.Errorf("--tls-min %q is not 1.3 or 1.2", f.TLSMin)
	}
	return g, nil
}

// scheme is that of the endpoint's URL.
func (f *guardFlags) scheme() string {
	if f.TLSCert != "" {
		return "https"
	}
	return "http"
}

// tlsError names the flag whose file is wrong.
func tlsError(err error) error {
	wrong, ok := errors.AsType[*gateway.FileError](err)
	if !ok {
		return err
	}
	flag := map[string]string{"Cert": "--tls-cert", "Key": "--tls-key", "Cert and Key": "--tls-cert and --tls-key", "ClientCA": "--tls-client-ca"}[wrong.Field]
	return fmt.Errorf("%s: %w", flag, wrong.Err)
}

// withoutSecrets returns what was given as a URL, and may not be a good one, without what may be
// a secret in it: user, password and query.
func withoutSecrets(text string) string {
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		return text
	}
	rest, _, _ = strings.Cut(rest, "?")
	return scheme + "://" + rest[strings.LastIndex(rest, "@")+1:]
}

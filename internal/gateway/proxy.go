package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/coatcheck/coatcheck/internal/session"
	"github.com/coatcheck/coatcheck/protocol"
)

// newProxy returns a handler that hands every request on to the server at endpoint, whatever
// the request's own path, byte for byte and stream by stream, but for the headers withheld.
func newProxy(endpoint string, transport http.RoundTripper, withheld []string, log *slog.Logger) (http.Handler, error) {
	target, err := url.Parse(endpoint)
	if err != nil {
		return nil, errors.New("the URL of the server is malformed") // not which: it may have secrets
	}
	server := session.WithoutSecrets(target).String()
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			u := *target
			r.Out.URL, r.Out.Host = &u, target.Host
			for _, name := range withheld {
				r.Out.Header.Del(name)
			}
			if user := target.User; user != nil {
				password, _ := user.Password()
				r.Out.SetBasicAuth(user.Username(), password)
			}
			// That a page may ask was seen to here: the server behind knows neither its origin nor ours.
			r.Out.Header.Del("Origin")
			maps.DeleteFunc(r.Out.Header, func(name string, _ []string) bool { return strings.HasPrefix(name, "Sec-Fetch-") })
		},
		ModifyResponse: func(resp *http.Response) error {
			// Who may read the answer is also said here.
			maps.DeleteFunc(resp.Header, func(name string, _ []string) bool { return strings.HasPrefix(name, "Access-Control-") })
			if len(withheld) > 0 { // it is the gateway's authorization that does not suffice
				resp.Header.Del("Www-Authenticate")
				if resp.StatusCode == http.StatusUnauthorized {
					return errUnauthorized
				}
			}
			return nil
		},
		Transport:     transport,
		FlushInterval: -1, // events are passed on as they come
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, req *http.Request, err error) {
			if req.Context().Err() != nil {
				return // the client went away
			}
			log.Warn("the server cannot be reached", "url", server, "error", err)
			if errors.Is(err, errUnauthorized) {
				writeError(w, http.StatusBadGateway, idOf(req.Context()), protocol.CodeInternalError, "the server behind the gateway refused the gateway's authorization")
				return
			}
			writeError(w, http.StatusBadGateway, idOf(req.Context()), protocol.CodeInternalError, "the server behind the gateway cannot be reached")
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost {
			body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxBody))
			if err != nil {
				http.Error(w, "failed to read body", http.StatusBadRequest)
				return
			}
			req = req.WithContext(context.WithValue(req.Context(), bodyKey{}, body))
			req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		}
		proxy.ServeHTTP(w, req)
	}), nil
}

// errUnauthorized: the server does not accept the gateway's token, or wants one.
var errUnauthorized = errors.New("401 Unauthorized")

// bodyKey is where a request's context has its body, for the answer if sending it fails.
type bodyKey struct{}

// idOf returns the id of the call that a request carries, or nil.
func idOf(ctx context.Context) []byte {
	body, _ := ctx.Value(bodyKey{}).([]byte)
	if m, err := protocol.ParseMessage(body); err == nil && m.IsCall() {
		return m.ID
	}
	return nil
}

func writeError(w http.ResponseWriter, status int, id []byte, code int64, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(protocol.AppendError(nil, id, protocol.Errorf(code, "%s", message).JSON()))
}

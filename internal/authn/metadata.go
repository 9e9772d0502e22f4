package authn

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
)

// wellKnown is where a protected resource's metadata begins (RFC 9728, 3).
const wellKnown = "/.well-known/oauth-protected-resource"

// metadataURL returns where the metadata of a resource is: its well-known path stands between
// the host and the resource's own path.
func metadataURL(resource string) string {
	u, err := url.Parse(resource)
	if err != nil {
		return ""
	}
	at := u.Scheme + "://" + u.Host + wellKnown + strings.TrimSuffix(u.EscapedPath(), "/")
	if u.RawQuery != "" {
		at += "?" + u.RawQuery
	}
	return at
}

// Mount serves the metadata that tells clients where to get a token (RFC 9728): for the
// resource, and for what is served at path, whatever the proxies in front call it.
func (g *Guard) Mount(mux *http.ServeMux, path string) {
	if g.config.Mode != JWT {
		return
	}
	scopes := slices.Concat(g.config.Scopes, g.config.Offered)
	slices.Sort(scopes)
	metadata := auth.ProtectedResourceMetadataHandler(&oauthex.ProtectedResourceMetadata{
		Resource:               g.config.Resource,
		AuthorizationServers:   g.config.Issuers,
		ScopesSupported:        slices.Compact(scopes),
		BearerMethodsSupported: []string{"header"},
	})
	paths := []string{wellKnown, wellKnown + path}
	if u, err := url.Parse(g.config.Resource); err == nil {
		if own := strings.TrimSuffix(u.Path, "/"); own != "" && !strings.ContainsAny(own, "{}") {
			paths = append(paths, wellKnown+own)
		}
	}
	slices.Sort(paths)
	for _, at := range slices.Compact(paths) {
		mux.Handle(at, metadata)
	}
}

package task

import "strings"

// Identity is who a verified token speaks for. Any part may be absent, which is "".
type Identity struct {
	Issuer  string // who vouches for the subject
	Subject string // whom the token is about
	Client  string // the program that the subject uses
}

// Principal returns the identity as a Principal. Two identities have the same one exactly if
// all three parts are the same, byte for byte. The Principal of no identity at all is "", and
// that of a plain subject without '|' and '%' is the subject itself.
func (i Identity) Principal() Principal {
	if i.Issuer == "" && i.Client == "" {
		return Principal(escaped.Replace(i.Subject))
	}
	return Principal(escaped.Replace(i.Issuer) + "|" + escaped.Replace(i.Subject) + "|" + escaped.Replace(i.Client))
}

var escaped = strings.NewReplacer("%", "%25", "|", "%7C")

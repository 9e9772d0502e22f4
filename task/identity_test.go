package task_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/coatcheck/coatcheck/task"
)

// SEC-1
func TestAnIdentityHasAPrincipalOfItsOwn(t *testing.T) {
	for _, tc := range []struct {
		identity task.Identity
		want     task.Principal
	}{
		{task.Identity{}, ""},
		{task.Identity{Subject: "alice"}, "alice"},
		{task.Identity{Subject: "auth0|alice"}, "auth0%7Calice"},
		{task.Identity{Issuer: "https://a.example", Subject: "alice", Client: "ide"}, "https://a.example|alice|ide"},
		{task.Identity{Issuer: "https://a.example", Subject: "alice"}, "https://a.example|alice|"},
		{task.Identity{Client: "robot"}, "||robot"},
	} {
		if got := tc.identity.Principal(); got != tc.want {
			t.Errorf("%+v is %q, want %q", tc.identity, got, tc.want)
		}
	}
	part := rapid.StringOfN(rapid.RuneFrom([]rune("a|%7C25")), 0, 6, -1)
	identity := rapid.Custom(func(t *rapid.T) task.Identity {
		return task.Identity{Issuer: part.Draw(t, "issuer"), Subject: part.Draw(t, "subject"), Client: part.Draw(t, "client")}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := identity.Draw(t, "a"), identity.Draw(t, "b")
		if (a == b) != (a.Principal() == b.Principal()) {
			t.Fatalf("%+v is %q, %+v is %q", a, a.Principal(), b, b.Principal())
		}
	})
}

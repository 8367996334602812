package bootapi_test

import (
	"net/http"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestTheIdentityOfAMachineThatIsAMemberNamesTheMember(t *testing.T) {
	for _, purpose := range []api.BootPurpose{api.BootEnvironment, api.BootMember} {
		s := newSite(t)
		s.machine(api.MachineBooting, purpose)
		w, status, detail := s.hello(s.claims(3, purpose), "once")
		if status != http.StatusOK || w.Agent == nil || w.Purpose != purpose {
			t.Fatalf("%s: %d %s: %+v", purpose, status, detail, w)
		}
		if in := s.cache.View().Node("n1").Identity; in == nil || in.Member != memberOf(purpose) {
			t.Errorf("%s: the identity is %+v, want it to name member %q", purpose, in, memberOf(purpose))
		}
	}
}

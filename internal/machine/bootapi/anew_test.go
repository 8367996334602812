package bootapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// Its token is spent, and stays so until its boot's deadline unless the leader hears of it.
func TestAMachineThatIsResetInTheMiddleOfItsBootIsBootedAnew(t *testing.T) {
	s := newSite(t)
	s.machine(api.MachineBooting, api.BootEnvironment)
	if _, status, detail := s.hello(s.claims(3, api.BootEnvironment), "first life"); status != http.StatusOK {
		t.Fatal(detail)
	}
	<-s.heard.Changed()
	if _, status, _ := s.hello(s.claims(3, api.BootEnvironment), "second life"); status != http.StatusConflict {
		t.Fatalf("its second life got %d", status)
	}
	if seen := s.heard.Seen("u1"); seen.Generation != 3 || !strings.Contains(seen.Problem, "restarted in the middle") {
		t.Errorf("the leader hears %+v", seen)
	}
	select {
	case <-s.heard.Changed():
	default:
		t.Error("nobody is told")
	}
}

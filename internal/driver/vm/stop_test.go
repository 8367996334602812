package vm_test

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// A guest that loses power before it has powered down loses data that it has not written back to the home.
func TestAMachineShutsDownInOrderThoughAProgramIgnoresTheRequest(t *testing.T) {
	images := needGuests(t)
	images.image.Kernel.Arguments = "console=ttyS0"
	r := newRig(t, images)
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	r.tell(t, id, order{Shell: "trap '' TERM; sleep 1000 >/dev/null 2>&1 </dev/null &"})
	console, err := r.Console(t.Context(), id, api.ConsoleRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), id, time.Second); err != nil {
		t.Fatal(err)
	}
	printed, err := io.ReadAll(console)
	if err != nil || !strings.Contains(string(printed), "Power down") {
		t.Errorf("%v; the guest did not power down before its power was cut; its console ends with:\n%s", err, printed[max(0, len(printed)-600):])
	}
	if err := r.Clean(t.Context(), id); err != nil {
		t.Error(err)
	}
}

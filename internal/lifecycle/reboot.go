package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// BootOf returns the name of the boot that was requested last of an assignment; empty: its first boot.
func BootOf(intent *api.ClusterIntent, id string) string {
	if intent == nil || intent.Reboot == nil || !slices.Contains(intent.Reboot.Members, id) {
		return ""
	}
	return intent.Reboot.AskedAt.UTC().Format(time.RFC3339Nano)
}

// Rebootable returns why a member can't be booted again on request, or "".
func Rebootable(spec api.ClusterSpec, a *api.Assignment) string {
	for _, g := range spec.Groups {
		if g.Name == a.Group && g.Stack != api.StackVM {
			return fmt.Sprintf("the member is of stack %q; only members of stack %q can reboot", g.Stack, api.StackVM)
		}
	}
	return ""
}

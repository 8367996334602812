package sim

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// intruder is the user that members of whole machines add to BMCs.
const intruder = "intruder"

// unsealed is a seal that hides nothing: nobody reads it here.
func unsealed(_ string, secret []byte) ([]byte, error) { return secret, nil }

// meddle is root of a member that tries to get into the machine's BMC from inside, for later.
func (b *box) meddle(member string) {
	if b.blind || b.w.drawnFor(b.name+" meddles "+member, 2) == 0 {
		return
	}
	reached := b.machine.AddAccount(api.BMCAccount{ID: "3", Name: intruder, Enabled: true})
	r, known := b.w.store.machine(b.name)
	switch {
	case !reached:
		b.w.happened("BMC closed to a member")
	case known && r.Tenant != nil && r.Tenant.Assignment == member && r.BMC != nil && r.BMC.Host == api.HostClosed:
		b.w.fail("whole", "%s reaches the BMC of %s, which is called closed", member, b.name)
	default:
		b.w.happened("BMC changed by a member")
	}
}

// checkBMC checks that a machine which is nobody's any more has no user of a member.
func (w *world) checkBMC(b *box, member string) {
	if !b.blind && slices.ContainsFunc(b.machine.Accounts(), func(a api.BMCAccount) bool { return a.Name == intruder }) {
		w.fail("whole", "%s is called clean after %s, which still has a user on its BMC", b.name, member)
	}
}

// Package bmcguard is the contract by which the BMCs of machines are kept from the machines' tenants: their host interface, their users, and the site's
// password.
//
// A Guard is one machine's: the switches of power that speak IPMI and Redfish are guards. A guard does what it is told and never decides; what a BMC can't do
// is power.ErrCannot and never taken for done. Nothing here may log a password. Start with Guard, then Differences.
package bmcguard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Guard keeps one machine's BMC. Its methods return before their context's deadline, leave no session open at the BMC, and may be called again after any
// error. Their errors are those of package power.
type Guard interface {
	// CloseHost closes the host interface as far as the BMC can, and reads it back: HostClosed, or HostFixed with the reason why it is not closed. It never
	// says HostClosed of what was not read.
	CloseHost(ctx context.Context) (state api.HostInterface, reason string, err error)
	// OpenHost undoes that. ErrCannot: the BMC has nothing to open.
	OpenHost(ctx context.Context) error
	// Look reads who can get in. ErrCannot: the BMC does not tell.
	Look(ctx context.Context) (*api.BMCBaseline, error)
	// Restore makes what differs from a baseline as it was, as far as that can be proved: accounts that were added can't be used any more. It does not read
	// back. What it can't set right is an error that names it.
	Restore(ctx context.Context, baseline *api.BMCBaseline) error
	// SetPassword gives the user that the guard logs in as another password, and proves it by a login. After an error either may be right: the guard goes on
	// to try both, the one that was right last first. ErrCannot: nothing was changed.
	SetPassword(ctx context.Context, password string) error
}

// Difference is one thing that is not as it was.
type Difference struct {
	// Account is the number or Id of an account; empty: it is a setting, of the name Setting.
	Account, Setting string
	// Before is the setting's former value.
	Before string
	// Was and Is are the account before and now; nil: there is none.
	Was, Is *api.BMCAccount
	// Text says it in words.
	Text string
}

// Differences returns what differs between a baseline and what is now, in a fixed order.
func Differences(was, is *api.BMCBaseline) []Difference {
	var all []Difference
	ids := map[string]bool{}
	find := func(b *api.BMCBaseline, id string) *api.BMCAccount {
		if i := slices.IndexFunc(b.Accounts, func(a api.BMCAccount) bool { return a.ID == id }); i >= 0 {
			return &b.Accounts[i]
		}
		return nil
	}
	for _, b := range []*api.BMCBaseline{was, is} {
		for _, a := range b.Accounts {
			ids[a.ID] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		d := Difference{Account: id, Was: find(was, id), Is: find(is, id)}
		switch {
		case d.Was == nil:
			d.Text = "user " + describe(d.Is) + " was added"
		case d.Is == nil:
			d.Text = "user " + describe(d.Was) + " was removed"
		case d.Was.Name == d.Is.Name && d.Was.Enabled == d.Is.Enabled && maps.Equal(d.Was.Rights, d.Is.Rights):
			continue
		default:
			d.Text = "user " + describe(d.Was) + " is now " + describe(d.Is)
		}
		all = append(all, d)
	}
	names := map[string]bool{}
	for _, settings := range []map[string]string{was.Settings, is.Settings} {
		for name := range settings {
			names[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if before, now := was.Settings[name], is.Settings[name]; before != now {
			all = append(all, Difference{Setting: name, Before: before, Text: fmt.Sprintf("%s was %q and is %q", name, before, now)})
		}
	}
	return all
}

// Text is differences in words, empty for none.
func Text(all []Difference) string {
	texts := make([]string, 0, len(all))
	for _, d := range all {
		texts = append(texts, d.Text)
	}
	return strings.Join(texts, "; ")
}

// describe is an account in words.
func describe(a *api.BMCAccount) string {
	text := a.ID
	if a.Name != "" {
		text += fmt.Sprintf(" %q", a.Name)
	}
	if !a.Enabled {
		return text + " (disabled)"
	}
	rights := make([]string, 0, len(a.Rights))
	for _, channel := range slices.Sorted(maps.Keys(a.Rights)) {
		rights = append(rights, channel+": "+a.Rights[channel])
	}
	return text + " (" + strings.Join(rights, ", ") + ")"
}

// ErrUnrestored is the error of what a guard could not set right: an operator has to.
var ErrUnrestored = errors.New("the BMC's users or settings can't be set right")

// Unrestored returns an ErrUnrestored that names differences.
func Unrestored(all []Difference) error {
	return fmt.Errorf("%w: %s; set them right at the BMC, then clean the machine", ErrUnrestored, Text(all))
}

// Same reports whether a baseline is of the BMC that is reached by control.
func Same(b *api.BMCBaseline, control api.PowerControl) bool {
	return b != nil && b.Kind == control.Kind && b.Address == control.Address
}

// NewPassword returns a password of 16 characters by chance, of letters, digits and a hyphen: every BMC takes such ones, and those that want several kinds of
// characters find them.
func NewPassword() string {
	const lower, upper, digits = "abcdefghijkmnopqrstuvwxyz", "ABCDEFGHJKLMNPQRSTUVWXYZ", "23456789"
	kinds := []string{lower, upper, digits, "-"}
	const length = 16
	password := make([]byte, length)
	for i := range password {
		from := lower + upper + digits
		if i < len(kinds) {
			from = kinds[i]
		}
		password[i] = from[below(len(from))]
	}
	for i := length - 1; i > 0; i-- {
		j := below(i + 1)
		password[i], password[j] = password[j], password[i]
	}
	return string(password)
}

// below returns a number below n, by crypto/rand.
func below(n int) int {
	number, err := rand.Int(rand.Reader, big.NewInt(int64(n)))
	if err != nil {
		panic(err) // never fails (crypto/rand)
	}
	return int(number.Int64())
}

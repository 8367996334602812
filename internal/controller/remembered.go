package controller

import (
	"bytes"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/state"
)

// remembered is what a leadership has worked out about machines, so that a pass works out only what changed. It belongs to the goroutine that
// leads and ends with it: passwords in clear are in no other place than the orders to the provisioner. Machines that are gone are forgotten, and
// so are images when any was removed.
type remembered struct {
	// images are what is booted of each image, by the manifest's digest: content under a digest never changes.
	images map[image.Digest]bootImage
	// machines are known by UID.
	machines map[string]*rememberedMachine
	// table is that of the newest boot table. Network boot reads it at the same time: it is never changed, only replaced.
	table map[string]*netboot.Machine
}

// rememberedMachine is what one machine comes to.
type rememberedMachine struct {
	// of is the machine as the rows were made from it. The view replaces a machine that changes, so identity tells. nil: make them again.
	of    *state.Machine
	boots bool
	// rows are those of the boot table, one for each MAC.
	rows []*netboot.Machine
	// password is the BMC's, next the one that is being set.
	password, next openedSeal
}

// bootImage is what is booted of an image.
type bootImage struct {
	architecture, arguments string
	kernel, initrd          image.Digest
}

// mostImages bounds the images that are remembered. A site boots a handful at a time; beyond the bound all are read again.
const mostImages = 256

func newRemembered() remembered {
	return remembered{images: map[image.Digest]bootImage{}, machines: map[string]*rememberedMachine{}, table: map[string]*netboot.Machine{}}
}

// forgetImages makes the next pass read all images again: some were removed, and what is gone must not be booted.
func (r *remembered) forgetImages() {
	clear(r.images)
	for _, m := range r.machines {
		m.of = nil
	}
}

// machine returns the entry of a machine, an empty one for a machine that was not met before.
func (r *remembered) machine(uid string) *rememberedMachine {
	m := r.machines[uid]
	if m == nil {
		m = &rememberedMachine{}
		r.machines[uid] = m
	}
	return m
}

// keepOnly forgets the machines that a view does not have. known is how many it has. It reports whether any was forgotten.
func (r *remembered) keepOnly(view *state.View, known int) bool {
	if len(r.machines) == known {
		return false
	}
	all := make(map[string]*rememberedMachine, known)
	for m := range view.Machines() {
		if entry := r.machines[m.UID()]; entry != nil && m.Record != nil {
			all[m.UID()] = entry
		}
	}
	r.machines = all
	return true
}

// tabulate replaces the table by one of all rows.
func (r *remembered) tabulate() {
	r.table = make(map[string]*netboot.Machine, len(r.machines))
	for _, m := range r.machines {
		for _, row := range m.rows {
			r.table[row.MAC] = row
		}
	}
}

// imageOf returns what is booted of an image. What can't be read is read again the next time.
func (l *leader) imageOf(digest image.Digest) (bootImage, error) {
	if img, ok := l.remembered.images[digest]; ok {
		return img, nil
	}
	manifest, err := l.cfg.Images.Load(digest)
	if err != nil {
		return bootImage{}, err
	}
	img := bootImage{architecture: manifest.Architecture}
	if manifest.Metal != nil {
		img.kernel, img.initrd = manifest.Metal.Kernel.Digest, manifest.Metal.Initrd.Digest
		img.arguments = strings.TrimSpace(panicArguments + " " + manifest.Metal.Arguments)
	}
	if len(l.remembered.images) >= mostImages {
		clear(l.remembered.images)
	}
	l.remembered.images[digest] = img
	return img, nil
}

// tabled brings the rows of a machine in the boot table up to date, and reports whether they were made anew. Where the error is not nil the
// machine has rows without a boot, and the next pass tries again.
func (l *leader) tabled(m *state.Machine) (entry *rememberedMachine, anew bool, err error) {
	entry = l.remembered.machine(m.UID())
	if entry.of == m {
		return entry, false, nil
	}
	var boot *netboot.Boot
	entry.of = m
	if lifecycle.MayBoot(m.Record) {
		if boot, err = l.bootOf(*m.Record.Boot); err != nil {
			entry.of = nil
		} else {
			boot.Machine = m.UID()
		}
	}
	entry.boots, entry.rows = boot != nil, nil
	for _, mac := range m.Intent.Spec.MACs {
		entry.rows = append(entry.rows, &netboot.Machine{
			Name: m.Name(), MAC: mac, Address: l.cfg.Provisioning.Network.Machines.At(m.Record.Index), Boot: boot, Waits: m.Record.Phase == api.MachineReady,
		})
	}
	return entry, true, err
}

// passwordsOf returns the password of a machine's BMC, and the one that is being set; "" for none. One that can't be opened is tried again.
func (l *leader) passwordsOf(m *state.Machine) (password, next string, err error) {
	entry := l.remembered.machine(m.UID())
	sealed, sealedNext := lifecycle.BMCPassword(&m.Intent, m.Record)
	if password, err = l.opened(m.UID(), sealed, &entry.password); err != nil {
		return "", "", err
	}
	next, err = l.opened(m.UID(), sealedNext, &entry.next)
	return password, next, err
}

// opened returns what a seal holds, "" for none; known is what was opened last.
func (l *leader) opened(uid string, sealed []byte, known *openedSeal) (string, error) {
	if len(sealed) == 0 {
		return "", nil
	}
	if bytes.Equal(known.sealed, sealed) {
		return known.secret, nil
	}
	secret, err := l.cfg.Provisioning.Unseal(uid, sealed)
	if err != nil {
		return "", err
	}
	known.sealed, known.secret = sealed, string(secret)
	return known.secret, nil
}

// openedSeal is a sealed secret and what it holds.
type openedSeal struct {
	sealed []byte
	secret string
}

package vm

import (
	"context"
	"os"
	"path/filepath"

	"github.com/digitalocean/go-libvirt"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// ServeHome serves a member's home without a machine, until the member is cleaned, and returns its socket.
func (d *Driver) ServeHome(m driver.Member) (string, error) {
	dir := d.path(m.Assignment.ID, dirLink)
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return "", err
	}
	if err := d.confine(&m.Assignment); err != nil {
		return "", err
	}
	return filepath.Join(dir, fileHome), d.keepHome(m)
}

// EndHome ends that.
var EndHome = (*Driver).endHome

// SaveAndRestore has libvirt write a machine with its memory to a file, which ends it, and start it from that.
func (d *Driver) SaveAndRestore(ctx context.Context, id string) error {
	host, done, err := d.use(ctx)
	if err != nil {
		return err
	}
	defer done()
	const file = "/run/libvirt/saved"
	if err := host.domain(ctx, id, func(rpc *libvirt.Libvirt, domain libvirt.Domain) error { return rpc.DomainSave(domain, file) }); err != nil {
		return err
	}
	return host.call(ctx, func(rpc *libvirt.Libvirt) error { return rpc.DomainRestore(file) })
}

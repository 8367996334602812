package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// ErrNoWireGuard reports that the kernel can't encrypt the underlay.
var ErrNoWireGuard = errors.New("the kernel has no WireGuard: load its module (modprobe wireguard), or boot a kernel that has it (Linux 5.6 or later)")

// CanEncrypt returns ErrNoWireGuard if this kernel has no WireGuard. It tries, in a network namespace of its own.
func CanEncrypt() error {
	space, err := netns.New()
	if err != nil {
		return err
	}
	defer func() { _ = space.Close() }()
	return space.Do(func() error { return addCipher(plan.CipherName) })
}

// addCipher makes a WireGuard device.
func addCipher(name string) error {
	req := linkMessage(name)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(string(plan.KindWireGuard)))
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ErrNoWireGuard
	}
	return err
}

// NodeKey returns the private key of a node, which it makes if the node has none. The key is in a file of the agent's directory and never leaves
// the node. A node whose file was removed gets another key.
func NodeKey(ctx context.Context, dir string, log *slog.Logger) (wgtypes.Key, error) {
	path := filepath.Join(dir, "wireguard.key")
	text, err := os.ReadFile(path)
	if err == nil {
		key, err := wgtypes.ParseKey(strings.TrimSpace(string(text)))
		if err != nil {
			return wgtypes.Key{}, fmt.Errorf("the node's WireGuard key in %s can't be read: %w; remove the file, and the node gets another", path, err)
		}
		return key, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return wgtypes.Key{}, fmt.Errorf("reading the node's WireGuard key: %w", err)
	}
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return wgtypes.Key{}, err
	}
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return wgtypes.Key{}, err
	}
	if err := os.WriteFile(next, []byte(key.String()+"\n"), 0o600); err != nil {
		return wgtypes.Key{}, fmt.Errorf("writing the node's WireGuard key: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return wgtypes.Key{}, fmt.Errorf("writing the node's WireGuard key: %w", err)
	}
	log.InfoContext(ctx, "made a WireGuard key", "file", path, "public_key", key.PublicKey().String())
	return key, nil
}

// newCipher makes the WireGuard device. Its address comes last: without it, no tunnel sends anything.
func (f *Fabric) newCipher(l plan.Link) error {
	if err := addCipher(l.Name); err != nil {
		return err
	}
	if err := f.setCipher(plan.SetCipher{Link: l.Name, Device: true, Cipher: l.Cipher, Peers: l.Cipher.Peers}); err != nil {
		return err
	}
	if err := bringUp(l.Name, l.MTU, 0); err != nil {
		return err
	}
	for _, a := range l.Addresses {
		if err := changeAddress(netlink.AddrAdd, l.Name, a.Addr().AsSlice(), a.Bits()); err != nil {
			return fmt.Errorf("adding address %v: %w", a, err)
		}
	}
	return netns.SetForwarding(l.Name, false)
}

// setCipher configures the WireGuard device. Former peers go first, since an address belongs to the peer that got it last.
func (f *Fabric) setCipher(o plan.SetCipher) error {
	var cfg wgtypes.Config
	if o.Device {
		cfg.PrivateKey, cfg.ListenPort = &f.cfg.PrivateKey, &o.Cipher.Port
	}
	for _, text := range o.Former {
		key, err := wgtypes.ParseKey(text)
		if err != nil {
			return err
		}
		cfg.Peers = append(cfg.Peers, wgtypes.PeerConfig{PublicKey: key, Remove: true})
	}
	for _, p := range o.Peers {
		key, err := wgtypes.ParseKey(p.PublicKey)
		if err != nil {
			return err
		}
		cfg.Peers = append(cfg.Peers, wgtypes.PeerConfig{
			PublicKey: key, Endpoint: net.UDPAddrFromAddrPort(p.Endpoint), ReplaceAllowedIPs: true,
			AllowedIPs: []net.IPNet{{IP: p.Allowed.Addr().AsSlice(), Mask: net.CIDRMask(p.Allowed.Bits(), 32)}},
		})
	}
	client, err := wgctrl.New()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return client.ConfigureDevice(o.Link, cfg)
}

// readCipher reads the configuration of a WireGuard device. The private key stays in the kernel's answer.
func readCipher(name string) (plan.Cipher, error) {
	client, err := wgctrl.New()
	if err != nil {
		return plan.Cipher{}, err
	}
	defer func() { _ = client.Close() }()
	device, err := client.Device(name)
	if errors.Is(err, fs.ErrNotExist) {
		return plan.Cipher{}, nil // it has gone meanwhile
	}
	if err != nil {
		return plan.Cipher{}, fmt.Errorf("reading WireGuard device %s: %w", name, err)
	}
	cipher := plan.Cipher{PublicKey: device.PublicKey.String(), Port: device.ListenPort}
	for _, p := range device.Peers {
		peer := plan.CipherPeer{PublicKey: p.PublicKey.String(), Others: max(len(p.AllowedIPs)-1, 0)}
		if p.Endpoint != nil {
			at := p.Endpoint.AddrPort()
			peer.Endpoint = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		}
		if len(p.AllowedIPs) > 0 {
			bits, _ := p.AllowedIPs[0].Mask.Size()
			peer.Allowed = netip.PrefixFrom(addr4(p.AllowedIPs[0].IP), bits)
		}
		cipher.Peers = append(cipher.Peers, peer)
	}
	slices.SortFunc(cipher.Peers, plan.CipherPeer.Compare)
	return cipher, nil
}

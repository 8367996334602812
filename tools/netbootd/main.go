// Command netbootd runs network boot alone, from a table made by flags, so that it can be measured beside dnsmasq, Kea, nginx and tftpd-hpa,
// each of which is a process of its own too. It is no part of the product. Start with run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/service"
)

type options struct {
	network  netboot.Network
	blobs    string
	loaders  string
	leases   string
	kernel   string
	initrd   string
	machines int
}

func main() {
	var o options
	var address, machines, strangers string
	flag.StringVar(&o.network.Interface, "interface", "boot0", "interface of the provisioning network")
	flag.StringVar(&address, "address", "10.77.0.1/16", "the server's address on it")
	flag.IntVar(&o.network.HTTPPort, "http-port", 8069, "port of HTTP")
	flag.StringVar(&machines, "machine-range", "10.77.1.1,10.77.15.254", "addresses of known machines: first,last")
	flag.StringVar(&strangers, "stranger-range", "10.77.16.1,10.77.255.254", "addresses of strangers: first,last")
	flag.IntVar(&o.machines, "machines", 0, "known machines: MACs 02:77:00:00:00:00 and on")
	flag.StringVar(&o.blobs, "blobs", ".", "directory of blobs by their digits")
	flag.StringVar(&o.loaders, "loaders", "", "directory of loaders")
	flag.StringVar(&o.leases, "leases", "", "file that leases are appended to")
	flag.StringVar(&o.kernel, "kernel", "", "digest of the kernel")
	flag.StringVar(&o.initrd, "initrd", "", "digest of the initrd")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, address, machines, strangers); err != nil {
		fmt.Fprintf(os.Stderr, "netbootd: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, address, machines, strangers string) error {
	var err error
	if o.network.Address, err = netip.ParsePrefix(address); err != nil {
		return err
	}
	if o.network.Machines, err = parseRange(machines); err != nil {
		return err
	}
	if o.network.Strangers, err = parseRange(strangers); err != nil {
		return err
	}
	store := &leaseFile{}
	if o.leases != "" {
		if store.file, err = os.Create(o.leases); err != nil {
			return err
		}
		defer func() { _ = store.file.Close() }()
	}
	s, err := service.Open(service.Config{
		Network: o.network, BootServer: "10.77.0.1:7443", Pin: "sha256:00", Leases: store, Blobs: directory(o.blobs), Loaders: o.loaders,
		Tokens: func(mac string, b *netboot.Boot, port string) string { return mac + port },
		Sink:   func(netboot.Event) {}, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)), ProbeWait: 100 * time.Millisecond,
	})
	if err != nil {
		return err
	}
	s.SetTable(table(o))
	fmt.Println("ready")
	return s.Run(ctx)
}

func table(o options) *netboot.Table {
	boot := &netboot.Boot{
		Generation: 1, Machine: "uid", Purpose: api.BootEnvironment, Kernel: image.Digest(o.kernel), Initrd: image.Digest(o.initrd),
		ExpiresAt: time.Now().Add(24 * time.Hour),
	}
	t := &netboot.Table{Term: 1, Revision: 1, Machines: map[string]*netboot.Machine{}, Stranger: boot}
	for i := range o.machines {
		mac := fmt.Sprintf("02:77:00:00:%02x:%02x", i>>8, i&0xff)
		t.Machines[mac] = &netboot.Machine{Name: fmt.Sprintf("n%d", i), MAC: mac, Address: o.network.Machines.At(i), Boot: boot}
	}
	return t
}

func parseRange(text string) (netboot.Range, error) {
	for i := range text {
		if text[i] == ',' {
			from, err1 := netip.ParseAddr(text[:i])
			to, err2 := netip.ParseAddr(text[i+1:])
			return netboot.Range{From: from, To: to}, errors.Join(err1, err2)
		}
	}
	return netboot.Range{}, fmt.Errorf("%q is no range: first,last", text)
}

// leaseFile appends leases without waiting for the disk, as Kea's memfile does.
type leaseFile struct {
	mu   sync.Mutex
	file *os.File
}

func (l *leaseFile) All() []api.Lease { return nil }

func (l *leaseFile) Keep(_ context.Context, lease api.Lease) error {
	if l.file == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := fmt.Fprintf(l.file, "%s,%s,%d\n", lease.MAC, lease.Address, lease.ExpiresAt.Unix())
	return err
}

func (l *leaseFile) Drop(context.Context, string) error { return nil }

// directory is blobs as files.
type directory string

func (d directory) Open(digest image.Digest) (netboot.Blob, error) {
	return netboot.OpenFile(filepath.Join(string(d), digest.Hex()))
}

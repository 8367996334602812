package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/controller"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/bootapi"
	"github.com/nearmetal/nearmetal/internal/machine/firmwarelist"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/ipxe"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/loaders"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/service"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/switches"
	"github.com/nearmetal/nearmetal/internal/machine/power/wol"
	"github.com/nearmetal/nearmetal/internal/machine/provisioner"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// refusedAgain is the pause after network boot was refused because another DHCP server answers.
const refusedAgain = 30 * time.Second

// provisioning is everything of a server that machines boot by.
type provisioning struct {
	*site
	cfg       config.Provision
	network   netboot.Network
	authority *trust.Authority
	stateDir  string
	listen    string // HOST:PORT of the API
	log       *slog.Logger

	programs *programs
	firmware *firmwarelist.List
	listener net.Listener // of the boot API
	tables   tables
}

// bootAddress is HOST:PORT of the boot API.
func (p *provisioning) bootAddress() string {
	return net.JoinHostPort(p.network.Address.Addr().String(), strconv.Itoa(config.BootPort))
}

// leads is what a leader needs of it.
func (p *provisioning) leads() *controller.Provisioning {
	deadlines := lifecycle.DefaultMachineDeadlines()
	if p.cfg.BootDeadline > 0 {
		deadlines.Boot = p.cfg.BootDeadline
	}
	deadlines.Verify, deadlines.IdleOff, deadlines.Warm = p.cfg.VerifyEvery, p.cfg.IdleOff, p.cfg.Warm
	open := switches.Opener(switches.Options{WakeOnLAN: wol.Options{Interface: p.cfg.Interface}})
	gate := power.NewGate(power.GateOptions{}) // one for all leaderships: it knows what was ordered before
	var read controller.Sensors
	if p.cfg.SensorsEvery > 0 {
		p.sensors.poller.Store(sensors.New(sensors.Options{Open: open, Gate: gate, Every: p.cfg.SensorsEvery, Log: p.log}))
		read = p.sensors.poller.Load()
	}
	return &controller.Provisioning{
		Sensors: read,
		New: func() controller.Provisioner {
			return provisioner.New(provisioner.Options{Open: open, Gate: gate, Log: p.log})
		},
		SetTable: p.tables.set, Heard: p.heard, Network: p.network,
		LoaderURL: loaderURL(p.network, cmp.Or(p.cfg.Loaders, loaders.DefaultDir)),
		Seal:      func(uid string, secret []byte) ([]byte, error) { return p.sealer.Seal(uid, secret), nil },
		Unseal:    p.sealer.Open,
		Deadlines: deadlines, RotatePasswords: p.cfg.RotateBMCPasswords, Firmware: p.firmware, BootAgent: p.programs.bootAgent.Digest,
	}
}

// httpX64 is the number of x86-64 UEFI firmware that boots by HTTP (IANA, "Processor Architecture Types").
const httpX64 = 16

// loaderURL is where such firmware finds the best of the loaders in dir, "" when there is none for it: network boot says what is wrong with dir.
func loaderURL(n netboot.Network, dir string) string {
	set, err := loaders.Read(dir)
	if err != nil {
		return ""
	}
	a, _ := loaders.Find([]uint16{httpX64})
	name := set.For(a)
	if name == "" {
		return ""
	}
	return ipxe.LoaderURL(n, name)
}

// open looks at what machines will run, and takes the boot API's address.
func (p *provisioning) open() error {
	var err error
	if p.programs, err = openPrograms(filepath.Join(p.stateDir, "boot")); err != nil {
		return fmt.Errorf("prepare what machines boot: %w", err)
	}
	if p.cfg.FirmwareList != "" {
		text, err := os.ReadFile(p.cfg.FirmwareList)
		if err != nil {
			return fmt.Errorf("read the firmware list: %w", err)
		}
		if p.firmware, err = firmwarelist.Parse(text); err != nil {
			return fmt.Errorf("read the firmware list %s: %w", p.cfg.FirmwareList, err)
		}
	}
	if problem := crowded(p.network, neighborLimit); problem != "" {
		p.log.Warn("the provisioning network", "problem", problem)
	}
	if p.listener, err = net.Listen("tcp", p.bootAddress()); err != nil {
		return fmt.Errorf("listen on the provisioning network at %s: %w", p.bootAddress(), err)
	}
	return nil
}

// run serves machines until ctx ends.
func (p *provisioning) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	api, err := p.bootAPI()
	if err != nil {
		return err
	}
	server := bootapi.HTTPServer(api, p.log)
	group.Go(func() error { return server.Serve(tls.NewListener(p.listener, p.authority.ServerTLS())) })
	group.Go(func() error {
		<-ctx.Done()
		return server.Close()
	})
	group.Go(func() error { return p.netboot(ctx) })
	err = group.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return ctx.Err()
	}
	return err
}

func (p *provisioning) bootAPI() (http.Handler, error) {
	agentServer, _, err := agentAddress(p.listen, p.network)
	if err != nil {
		return nil, err
	}
	s, err := bootapi.New(bootapi.Config{
		Reader: p.cache, Writer: p.repo, Images: p.images, Heard: p.heard, Secrets: p.secrets, Identify: p.nodes.ForBoot, PublicKey: p.images.PublicKey(),
		At: p.tables.at, Proxy: p.network.Proxy, Peers: p.peers, Next: p.next,
		AgentBinary: p.programs.nodeAgent, AgentGzip: &p.programs.nodeAgentGzip, OpenAgent: func() (io.ReadSeekCloser, error) { return os.Open(self) },
		OpenFiles: func(digest image.Digest) (io.ReadSeekCloser, error) {
			blob, err := p.memberFiles.Open(digest)
			if err != nil {
				return nil, err
			}
			return struct {
				io.ReadSeeker
				io.Closer
			}{io.NewSectionReader(blob, 0, blob.Size()), blob}, nil
		},
		AgentServer: agentServer, StrangerImage: p.strangerImage, SiteTime: p.now, Log: p.log,
	})
	if err != nil {
		return nil, err
	}
	return s.Handler(), nil
}

// peers are the nodes that a machine may read its root from besides the server, once several boot the same.
func (p *provisioning) peers(digest image.Digest) []string {
	whole, fetching := p.agents.Holders(digest)
	for m := range p.cache.View().Machines() {
		if r := m.Record; r != nil && lifecycle.MayBoot(r) && r.Boot.Digest == string(digest) && !r.Boot.Local {
			fetching[m.Name()] = ""
		}
	}
	return controller.Peers(func(image.Digest) (_, _ map[string]string) { return whole, fetching }, digest, "")
}

func (p *provisioning) strangerImage() image.Digest {
	if img := p.cache.View().ImageOf(lifecycle.InspectEnvironment); img != nil {
		return image.Digest(img.Digest)
	}
	return ""
}

// netboot serves network boot. While another DHCP server is on the wire it serves nothing and says so, now and then looking again: what
// else the server does goes on.
func (p *provisioning) netboot(ctx context.Context) error {
	for first := true; ; first = false {
		s, err := service.Open(service.Config{
			Network: p.network, BootServer: p.bootAddress(), Pin: p.authority.Pin().String(), Leases: p.repo.LeaseStore(p.cache),
			Blobs: withPrograms{p.images.store, p.programs}, Tokens: p.token, Sink: p.event, Loaders: p.cfg.Loaders, Now: p.now, Log: p.log,
		})
		if err != nil && first {
			return fmt.Errorf("network boot: %w", err)
		}
		if err == nil { // else what served once does not now, the interface being away say: no reason to end all else
			p.tables.serve(s)
			err = s.Run(ctx)
			p.tables.serve(nil)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.log.ErrorContext(ctx, "no machine can boot over the network", "problem", err, "retry in", refusedAgain)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(refusedAgain):
		}
	}
}

// token makes the boot token of a machine's boot.
func (p *provisioning) token(mac string, b *netboot.Boot, port string) string {
	expires := b.ExpiresAt
	if b.Machine == "" {
		expires = p.now().Add(strangerLife)
	}
	return boot.Seal(p.secrets.Newest(), boot.TokenClaims{
		MAC: mac, Machine: b.Machine, Generation: b.Generation, Purpose: b.Purpose, Port: port, ExpiresAt: expires,
	})
}

// next is what network boot would give a machine in the boot of a generation; nil while it would give it nothing.
func (p *provisioning) next(mac, port string, generation int64) *boot.Next {
	b := p.tables.boot(mac)
	if b == nil || b.Generation != generation {
		return nil
	}
	next := &boot.Next{
		Kernel: b.Kernel, Initrds: []image.Digest{b.Initrd},
		Arguments: ipxe.Arguments(p.network, b, boot.Arguments{
			Server: p.bootAddress(), Pin: p.authority.Pin().String(), Token: p.token(mac, b, port), MAC: mac, Time: p.now(),
		}),
	}
	if b.Agent != "" {
		next.Initrds = append(next.Initrds, b.Agent)
	}
	return next
}

// strangerLife is how long a stranger may take from its loader to its first word.
const strangerLife = 30 * time.Minute

// event takes what network boot saw.
func (p *provisioning) event(e netboot.Event) {
	uid := ""
	if m := p.cache.View().MachineByMAC(e.MAC.String()); m != nil {
		uid = m.UID()
	}
	p.heard.Event(uid, e)
}

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/enrollment"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// bootPeer is network boot as one sets it up by hand: dnsmasq for DHCP and TFTP of Debian's loaders, nginx for one script and all that is
// fetched, both started by a script. Machines' boot agents call an answering machine that gives everybody the same answers, made once.
type bootPeer struct {
	dir, images string // working directory; directory with blobs named by their digits
	manifest    []byte
	digest      image.Digest
	// programs are what the site made of itself for machines to run: boot agent and node agent.
	programs string
	program  string // the node agent itself
	// quick adds what not everybody knows of: no ping before an address is given, and a router advertisement, without which iPXE waits for one.
	quick bool
}

// openBootPeer takes images from a site's state directory.
func openBootPeer(o options, state, dir, digest string) (*bootPeer, error) {
	p := &bootPeer{dir: dir, images: filepath.Join(state, "images"), digest: image.Digest(digest), programs: filepath.Join(state, "boot"), program: o.nearmetal}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	p.manifest, err = os.ReadFile(filepath.Join(p.images, p.digest.Hex()))
	return p, err
}

// start runs it until it is stopped.
func (p *bootPeer) start(ctx context.Context) (stop func() error, err error) {
	manifest, err := image.Decode(p.manifest, p.digest)
	if err != nil {
		return nil, err
	}
	pin, api, err := p.answers(ctx)
	if err != nil {
		return nil, err
	}
	base := fmt.Sprintf("http://%s:%d", bootServer, bootHTTPPort)
	arguments := boot.Arguments{
		Server: fmt.Sprintf("%s:%d", bootServer, bootTLSPort), Pin: pin, Token: "by-hand", MAC: "MAC", Purpose: "environment",
		Manifest: p.digest, Images: base + "/images/", Time: time.Now(),
	}
	line := bytes.ReplaceAll([]byte(arguments.Encode()), []byte("=MAC"), []byte("=${netX/mac}"))
	bootAgent, err := p.blob(filepath.Join(p.programs, "boot-*.cpio.zst"))
	if err != nil {
		return nil, errors.Join(err, api.Close())
	}
	script := fmt.Sprintf("#!ipxe\nkernel --name kernel %[1]s/images/%[2]s initrd=initrd initrd=agent %[3]s %[4]s\n"+
		"initrd --name initrd %[1]s/images/%[5]s\ninitrd --name agent %[1]s/images/%[6]s\nboot\n",
		base, manifest.Metal.Kernel.Digest.Hex(), manifest.Metal.Arguments, line, manifest.Metal.Initrd.Digest.Hex(), bootAgent.Digest.Hex())
	conf := fmt.Sprintf(`worker_processes auto; daemon off; pid %[1]s/nginx.pid; error_log stderr warn; user root;
events { worker_connections 4096; }
http { access_log off; sendfile on; tcp_nopush on; client_body_temp_path %[1]s/t1; proxy_temp_path %[1]s/t2; fastcgi_temp_path %[1]s/t3;
 uwsgi_temp_path %[1]s/t4; scgi_temp_path %[1]s/t5; default_type application/octet-stream;
 server { listen %[2]s:%[3]d; location /images/ { alias %[4]s/; } location = /boot.ipxe { alias %[1]s/boot.ipxe; } } }
`, p.dir, bootServer, bootHTTPPort, p.images)
	err = errors.Join(
		os.WriteFile(filepath.Join(p.dir, "boot.ipxe"), []byte(script), 0o644),
		os.WriteFile(filepath.Join(p.dir, "nginx.conf"), []byte(conf), 0o644),
	)
	if err != nil {
		return nil, errors.Join(err, api.Close())
	}
	_ = os.Remove(filepath.Join(p.dir, "leases"))
	args := []string{
		"--keep-in-foreground", "--port=0", "--conf-file=/dev/null", "--interface=" + bootCable, "--bind-interfaces", "--user=root", "--pid-file",
		"--dhcp-leasefile=" + filepath.Join(p.dir, "leases"), "--log-facility=-", "--dhcp-authoritative", "--dhcp-range=10.99.60.100,10.99.60.200,255.255.255.0,1h",
		"--enable-tftp", "--tftp-root=/usr/lib/ipxe", "--dhcp-userclass=set:ipxe,iPXE", "--dhcp-match=set:bios,option:client-arch,0",
		"--dhcp-boot=tag:!ipxe,tag:bios,undionly.kpxe", "--dhcp-boot=tag:!ipxe,tag:!bios,snponly.efi", "--dhcp-boot=tag:ipxe," + base + "/boot.ipxe",
	}
	if p.quick {
		args = append(args, "--no-ping", "--enable-ra", "--dhcp-range=fd00:60::,ra-only,64")
	}
	c := &cable{dir: p.dir}
	s, err := c.serve(ctx, func(*server) error {
		return errors.Join(bound(ctx, "udp", 67), bound(ctx, "tcp", bootHTTPPort))
	}, exec.Command("dnsmasq", args...), exec.Command("nginx", "-c", filepath.Join(p.dir, "nginx.conf"), "-e", "stderr"))
	if err != nil {
		return nil, errors.Join(err, api.Close())
	}
	return func() error { return errors.Join(s.stop(), api.Close()) }, nil
}

// answers starts the boot API that gives everybody the same answers; pin is of its CA.
func (p *bootPeer) answers(ctx context.Context) (pin string, server *http.Server, err error) {
	authority, err := trust.Open(p.dir, bootServer)
	if err != nil {
		return "", nil, err
	}
	key, err := image.SigningKey([]byte("by hand"))
	if err != nil {
		return "", nil, err
	}
	binary, err := p.blob(p.program)
	if err != nil {
		return "", nil, err
	}
	compressed, err := p.blob(filepath.Join(p.programs, "agent-*.gz"))
	if err != nil {
		return "", nil, err
	}
	welcome := boot.Welcome{
		Session: "by-hand", Name: "byhand", Purpose: api.BootEnvironment, Manifest: p.manifest, Signature: image.Sign(key, p.manifest),
		PublicKey: image.PublicKey(key), Time: time.Now(), HealthDeadline: time.Minute,
		// Nobody listens there: the node agent runs and finds no server.
		Agent: &boot.Agent{Binary: binary, Gzip: &compressed, Server: bootServer + ":1", Generation: 1},
	}
	registrar := &enrollment.Registrar{Authority: authority, Now: time.Now}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+boot.HelloPath, func(w http.ResponseWriter, r *http.Request) {
		var hello boot.Hello
		if err := json.NewDecoder(r.Body).Decode(&hello); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		own, agent := welcome, *welcome.Agent
		var err error
		if _, agent.Certificate, err = registrar.ForBoot(own.Name, hello.Request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		own.Agent = &agent
		_ = json.NewEncoder(w).Encode(own)
	})
	goOn := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = w.Write([]byte(`{"do":"continue"}`))
	}
	mux.HandleFunc("POST "+boot.StagePath, goOn)
	mux.HandleFunc("POST "+boot.ReportPath, goOn)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("%s:%d", bootServer, bootTLSPort))
	if err != nil {
		return "", nil, err
	}
	server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go func() { _ = server.Serve(tls.NewListener(listener, authority.ServerTLS())) }()
	return authority.Pin().String(), server, nil
}

// blob puts the only file that a pattern names where nginx finds it, by its digest.
func (p *bootPeer) blob(pattern string) (image.Blob, error) {
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		return image.Blob{}, fmt.Errorf("there are %d files %s, want one: %w", len(found), pattern, err)
	}
	content, err := os.ReadFile(found[0])
	if err != nil {
		return image.Blob{}, err
	}
	blob := image.Blob{Digest: image.DigestOf(content), SizeBytes: int64(len(content))}
	return blob, os.WriteFile(filepath.Join(p.images, blob.Digest.Hex()), content, 0o644)
}

package vdc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/digitalocean/go-libvirt"
)

// serve starts what this process itself does inside, until ctx ends: the BMCs' front, the consoles, the listener for magic packets.
func (dc *DataCentre) serve(ctx context.Context) error {
	certificate, sum, err := bmcCertificate(dc.machines)
	if err != nil {
		return err
	}
	consoles := map[string]*console{}
	for _, m := range dc.machines {
		m.CertificateSHA256 = sum
		proxy := newRedfishProxy(redfishBackend, m.UUID, m.fault, m.User, m.Password)
		proxy.backend.Transport = &http.Transport{DialContext: dc.dial}
		proxy.setBoot = func(ctx context.Context, uri string) error { return dc.setBoot(ctx, m, uri) }
		m.redfish = proxy
		if err := dc.serveHTTP(ctx, m, proxy, httpPort, nil); err != nil {
			return err
		}
		if err := dc.serveHTTP(ctx, m, proxy, httpsPort, &certificate); err != nil {
			return err
		}
		c := newConsole(consoleSocket(dc.dir, m.Name))
		consoles[m.Name] = c
		listener, err := dc.listen(ctx, fmt.Sprintf("%s:%d", m.bmc, consolePort))
		if err != nil {
			return err
		}
		dc.run(func() { c.serve(ctx, listener) })
	}
	if err := dc.watch(ctx, consoles); err != nil {
		return err
	}
	return dc.listenForMagic(ctx)
}

// run keeps Close waiting for f.
func (dc *DataCentre) run(f func()) {
	dc.background.Go(f)
}

// listen opens a port inside.
func (dc *DataCentre) listen(ctx context.Context, address string) (listener net.Listener, err error) {
	err = dc.inside.Do(func() error {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		return err
	})
	return listener, err
}

// dial connects to a port inside.
func (dc *DataCentre) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = dc.inside.Do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// serveHTTP serves a BMC's Redfish at a port, over TLS with a certificate.
func (dc *DataCentre) serveHTTP(ctx context.Context, m *Machine, handler http.Handler, port int, certificate *tls.Certificate) error {
	listener, err := dc.listen(ctx, fmt.Sprintf("%s:%d", m.bmc, port))
	if err != nil {
		return err
	}
	if certificate != nil {
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{*certificate}})
	}
	server := &http.Server{Handler: handler, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute}
	dc.run(func() { _ = server.Serve(listener) })
	context.AfterFunc(ctx, func() { server.Close() })
	return nil
}

// bmcCertificate is one for all BMCs, signed by itself as theirs usually are.
func bmcCertificate(machines []*Machine) (tls.Certificate, string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, "", err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "BMC"},
		NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(10, 0, 0), BasicConstraintsValid: true,
	}
	for _, m := range machines {
		template.IPAddresses = append(template.IPAddresses, m.bmc.AsSlice())
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, "", err
	}
	sum := sha256.Sum256(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, hex.EncodeToString(sum[:]), nil
}

// watch follows machines' starts and ends: consoles are connected, machines with hung firmware halted.
func (dc *DataCentre) watch(ctx context.Context, consoles map[string]*console) error {
	events, err := dc.virt.rpc.LifecycleEvents(ctx)
	if err != nil {
		return err
	}
	dc.run(func() {
		for event := range events {
			name := event.Dom.Name
			switch libvirt.DomainEventType(event.Event) {
			case libvirt.DomainEventStarted:
				dc.logf("%s is on", name)
				if m, err := dc.find(name); err == nil && m.hung.Load() {
					dc.run(func() { _ = dc.virt.halt(name) })
				}
				if c := consoles[name]; c != nil {
					dc.run(func() { c.follow(ctx) })
				}
			case libvirt.DomainEventStopped:
				dc.logf("%s is off", name)
				if m, err := dc.find(name); err == nil && m.variables != nil {
					dc.run(func() {
						if err := m.variables.off(ctx); err != nil {
							dc.logf("%v", err)
						}
					})
				}
			}
		}
	})
	return nil
}

// waitForBMCs waits until sushy-tools and every IPMI BMC can answer.
func (dc *DataCentre) waitForBMCs(ctx context.Context) error {
	err := until(ctx, dc.keeper.ended, func() error {
		conn, err := dc.dial(ctx, "tcp", redfishBackend)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("waiting for sushy-tools: %w", err)
	}
	for _, m := range dc.machines {
		if m.config.HostInterface != HostNone {
			if err := dc.waitForSim(ctx, m); err != nil {
				return err
			}
			continue
		}
		// ipmi.py writes the number of sessions first when its port is open.
		err := until(ctx, dc.keeper.ended, func() error {
			_, err := os.Stat(filepath.Join(dc.dir, "bmc", m.Name+".sessions"))
			return err
		})
		if err != nil {
			return fmt.Errorf("waiting for the IPMI BMC of %s: %w", m.Name, err)
		}
	}
	return nil
}

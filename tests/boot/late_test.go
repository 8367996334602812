package boot

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Whatever was sent in an earlier life of a machine, and comes late, gets nothing, from whom and wherever it comes.
func TestLatePacketsFromAnEarlierLifeGetNothing(t *testing.T) {
	s, w := newSiteOnAWire(t, pair()[:1])
	w.record()
	s.start()
	s.enroll("b1", api.PowerRedfish)
	m := s.machine("b1")
	s.run("node", "power", "on", "b1", "--env", "debian-mpi")
	booting := s.waitUntil("b1", "at its kernel", bootDeadline, has(1, api.StageKernel))
	requests, paths, tokens := w.recorded(m.MAC)
	if len(requests) == 0 || len(paths) == 0 || len(tokens) == 0 {
		t.Fatalf("recorded %d DHCP requests, scripts %v and %d tokens", len(requests), paths, len(tokens))
	}
	token, server := tokens[len(tokens)-1], "http://"+scriptServer(t, s, w)

	t.Log("while the machine boots, somebody else on the wire has its token and its script's path")
	elsewhere := w.plug(s.at(250), "")
	if status, body := get(t, client(elsewhere, &http.Transport{}), server+paths[0]); status != http.StatusForbidden {
		t.Errorf("its script, from elsewhere: %d %s", status, body)
	}
	s.wantHelloRefused(elsewhere, token, m.MAC)
	wantWholeBoot(t, s.waitFor("b1", api.MachineReady, bootDeadline))
	s.run("node", "power", "off", "b1", "--force")
	s.waitFor("b1", api.MachineOff, 5*time.Minute)

	t.Log("once it is off, all that it sent is sent again, from its own MAC and address")
	address := booting.Machine.Address
	imposter := w.plug(s.at(address.As4()[3]), m.MAC)
	for _, reply := range replay(t, imposter, requests) {
		file := reply.BootFileNameOption() + reply.BootFileName
		if reply.YourIPAddr.String() != address.String() || strings.Contains(file, "undionly") || strings.Contains(file, "snponly") {
			t.Errorf("its DHCP request is answered with address %s and file %q", reply.YourIPAddr, file)
		}
	}
	own := client(imposter, &http.Transport{})
	for _, path := range paths {
		status, script := get(t, own, server+path)
		t.Logf("%s: %d", path, status)
		bootsNothing(t, script)
	}
	s.wantHelloRefused(imposter, token, m.MAC)
	if r := s.record("b1"); r.Phase != api.MachineOff || r.Boot.Generation != booting.Machine.Record.Boot.Generation {
		t.Errorf("it is %s in generation %d now", r.Phase, r.Boot.Generation)
	}

	t.Log("in the next boot, before the machine says anything")
	must(t, s.dc.HangFirmware("b1", true))
	s.run("node", "power", "on", "b1", "--env", "debian-mpi")
	s.waitUntil("b1", "on", 3*time.Minute, has(1, api.StagePower))
	for _, path := range paths {
		_, script := get(t, own, server+path)
		bootsNothing(t, script) // it leads to the present one's at most
	}
	s.wantHelloRefused(imposter, token, m.MAC)
	if r := s.record("b1"); r.Boot.RedeemedAt != nil {
		t.Errorf("the late token was taken at %s", r.Boot.RedeemedAt)
	}
}

// scriptServer is HOST:PORT that scripts were fetched from.
func scriptServer(t *testing.T, s *site, w *wire) string {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, frame := range w.frames {
		if found := scriptRequest.Find(frame); found != nil && frame[14] == 0x45 {
			port := int(frame[36])<<8 | int(frame[37]) // RFC 9293, section 3.1
			return net.JoinHostPort(s.address.Addr().String(), strconv.Itoa(port))
		}
	}
	t.Fatal("no script was fetched")
	return ""
}

// wantHelloRefused tries to exchange a boot token.
func (s *site) wantHelloRefused(ns netns.Handle, token, mac string) {
	s.t.Helper()
	body, err := json.Marshal(boot.Hello{Token: token, Nonce: "late", MACs: []string{mac}})
	must(s.t, err)
	c := client(ns, &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}) // it is not the client that is to be protected here
	url := "https://" + net.JoinHostPort(s.address.Addr().String(), strconv.Itoa(config.BootPort)) + boot.HelloPath
	r, err := c.Post(url, "application/json", bytes.NewReader(body))
	must(s.t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	must(s.t, err)
	if r.StatusCode < 400 || bytes.Contains(text, []byte("session\":")) {
		s.t.Errorf("a late token is answered with %d %s", r.StatusCode, text)
	}
	s.t.Logf("hello: %d %s", r.StatusCode, bytes.TrimSpace(text))
}

// replay sends frames and returns what is answered.
func replay(t *testing.T, ns netns.Handle, frames [][]byte) (replies []*dhcpv4.DHCPv4) {
	t.Helper()
	var conn *packet.Conn
	must(t, ns.Do(func() error { conn = listen(t, "eth0"); return nil }))
	buf := make([]byte, 1<<16)
	for _, frame := range frames {
		_, err := conn.WriteTo(frame, &packet.Addr{HardwareAddr: net.HardwareAddr(frame[:6])})
		must(t, err)
		// Not every request is answered: one that chose another server's offer is not. A server on the same host needs no second.
		must(t, conn.SetReadDeadline(time.Now().Add(2*time.Second)))
		for {
			n, _, err := conn.ReadFrom(buf)
			if err != nil {
				break
			}
			if !port(buf[:n], 68) {
				continue
			}
			reply, err := dhcpv4.FromBytes(buf[42:n])
			must(t, err)
			replies = append(replies, reply)
			break
		}
	}
	if len(replies) == 0 {
		t.Error("no DHCP request was answered; the machine would have no address")
	}
	return replies
}

func TestAnotherDHCPServerIsNoticedAndRefusedAndProxyDHCPBootsMachinesBesideIt(t *testing.T) {
	s, w := newSiteOnAWire(t, pair())
	other := w.plug(s.at(200), "")
	dnsmasq := exec.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--interface=eth0", "--bind-interfaces", "--user=root",
		"--pid-file", "--log-facility=-", "--dhcp-authoritative", "--dhcp-leasefile="+filepath.Join(s.dir, "dnsmasq.leases"),
		"--dhcp-range="+s.at(201).Addr().String()+","+s.at(220).Addr().String()+",1h")
	log, err := os.Create(filepath.Join(s.dir, "dnsmasq.log"))
	must(t, err)
	defer log.Close()
	dnsmasq.Stdout, dnsmasq.Stderr = log, log
	must(t, other.Do(dnsmasq.Start))
	t.Cleanup(func() {
		_ = dnsmasq.Process.Kill()
		_ = dnsmasq.Wait()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("dnsmasq said:\n%s", tail(string(text), 40))
		}
	})
	s.start()
	s.until(2*time.Minute, "the other server to be noticed", func() bool {
		return strings.Contains(s.said(), "another DHCP server, "+s.at(200).Addr().String())
	})
	s.enroll("b1", api.PowerRedfish)
	s.enroll("u1", api.PowerIPMI)

	t.Log("beside it, as a proxy")
	s.stop()
	s.args = []string{"--provision-proxy"}
	s.start()
	s.run("node", "power", "on", "b1", "u1", "--env", "debian-mpi")
	for _, name := range []string{"b1", "u1"} {
		wantWholeBoot(t, s.waitFor(name, api.MachineReady, bootDeadline))
	}
	s.run("node", "power", "off", "b1", "u1")
	for _, name := range []string{"b1", "u1"} {
		s.waitFor(name, api.MachineOff, 5*time.Minute)
		s.wantPower(name, api.PowerOff)
	}
	s.wantUntouched()
}

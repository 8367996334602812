package pdu_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/energy/pdu"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// base is where the agent's outlets are: that of one vendor's table of metered outlets.
const base = "1.3.6.1.4.1.318.1.1.26.9.4.3.1.7"

// outlets are what the agent says of each outlet: a type and a value of snmpd's pass protocol (snmpd.conf(5)). Others don't exist.
const outlets = `
.1) echo gauge; echo 2405 ;;
.2) echo string; echo "57.5" ;;
.3) echo integer; echo -1 ;;
.4) echo string; echo "n/a" ;;
.5) echo objectid; echo .1.3.6 ;;
.6) echo gauge; echo 0 ;;
`

// agent starts Debian's snmpd, with a script that knows the outlets, and returns its address.
func agent(t *testing.T) string {
	t.Helper()
	program := needs.Program(t, "snmpd")
	dir := t.TempDir()
	script := filepath.Join(dir, "outlets.sh")
	text := "#!/bin/sh\n[ \"$1\" = -g ] || exit 0\nn=${2#." + base + "}\nknown() { case $n in\n" + outlets + "*) exit 0 ;;\nesac; }\nall=$(known) || exit 0\n[ -n \"$all\" ] || exit 0\necho \"$2\"\necho \"$all\"\n"
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := conn.LocalAddr().String()
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "snmpd.conf")
	settings := fmt.Sprintf("agentaddress udp:%s\nrocommunity watts 127.0.0.1\ncreateUser reader SHA \"authenticate\" AES \"encipherall\"\nrouser reader priv\npass .%s /bin/sh %s\n", address, base, script)
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-f", "-Le", "-C", "-c", config, "-p", filepath.Join(dir, "pid"))
	cmd.Env = append(os.Environ(), "SNMP_PERSISTENT_DIR="+filepath.Join(dir, "state"), "MIBS=")
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	// It answers once it answers.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		select {
		case <-ended:
			t.Fatalf("snmpd ended:\n%s", &log)
		default:
		}
		one, stop := context.WithTimeout(ctx, 2*time.Second)
		_, err := pdu.New([]pdu.Outlet{{Address: address, OID: base + ".1", Community: "watts"}}).Read(one)
		stop()
		if err == nil {
			return address
		}
		if ctx.Err() != nil {
			t.Fatalf("snmpd does not answer: %v", err)
		}
	}
}

func TestOutletsOfARealAgentAreRead(t *testing.T) {
	t.Parallel()
	address := agent(t)
	outlet := func(n string) pdu.Outlet {
		return pdu.Outlet{Address: address, OID: base + "." + n, Community: "watts"}
	}
	tenth := outlet("1")
	tenth.Scale = 0.1
	secure := pdu.Outlet{Address: address, OID: "." + base + ".1", User: "reader", AuthPassword: "authenticate", PrivacyPassword: "encipherall"}
	wrong := secure
	wrong.AuthPassword = "authenticated"
	stranger := outlet("1")
	stranger.Community = "volts"
	for _, c := range []struct {
		name    string
		outlets []pdu.Outlet
		watts   float64
		says    string // of the error; empty: there is none
	}{
		{"a gauge in watts", []pdu.Outlet{outlet("1")}, 2405, ""},
		{"a gauge in tenths of watts", []pdu.Outlet{tenth}, 240.5, ""},
		{"a text", []pdu.Outlet{outlet("2")}, 57.5, ""},
		{"an outlet that carries nothing", []pdu.Outlet{outlet("6")}, 0, ""},
		{"two outlets of one machine", []pdu.Outlet{tenth, outlet("2")}, 298, ""},
		{"version 3", []pdu.Outlet{secure}, 2405, ""},
		{"version 3 with another password", []pdu.Outlet{wrong}, 0, "did not answer"},
		{"another community", []pdu.Outlet{stranger}, 0, "did not answer"},
		{"an outlet without a meter", []pdu.Outlet{outlet("3")}, 0, "whether the outlet has a meter"},
		{"a text that is no number", []pdu.Outlet{outlet("4")}, 0, "no number"},
		{"an object that is no number", []pdu.Outlet{outlet("5")}, 0, "instead of a number"},
		{"an object that is not there", []pdu.Outlet{outlet("99")}, 0, "no such object"},
		{"one of two that is not there", []pdu.Outlet{tenth, outlet("99")}, 0, "no such object"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, o := range c.outlets {
				if err := o.Check(); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			got, err := pdu.New(c.outlets).Read(ctx)
			if c.says == "" && (err != nil || got.Watts < c.watts-1e-9 || got.Watts > c.watts+1e-9) {
				t.Errorf("got %+v, %v; want %g W", got, err, c.watts)
			}
			if c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "authenticate")) {
				t.Errorf("got %+v, %v; want an error with %q and without passwords", got, err, c.says)
			}
		})
	}
}

func TestAnOutletThatCanNotBeReadIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	good := pdu.Outlet{Address: "pdu1", OID: base + ".1", Community: "watts"}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*pdu.Outlet){
		"no address":       func(o *pdu.Outlet) { o.Address = "" },
		"no port":          func(o *pdu.Outlet) { o.Address = "pdu1:http" },
		"no object":        func(o *pdu.Outlet) { o.OID = "" },
		"a name":           func(o *pdu.Outlet) { o.OID = "rPDU2OutletMeteredStatusPower.1" },
		"a negative scale": func(o *pdu.Outlet) { o.Scale = -1 },
		"no credentials":   func(o *pdu.Outlet) { o.Community = "" },
		"both versions":    func(o *pdu.Outlet) { o.User = "reader" },
		"a short password": func(o *pdu.Outlet) {
			o.Community, o.User, o.AuthPassword, o.PrivacyPassword = "", "reader", "short", "longenough"
		},
	} {
		o := good
		if change(&o); o.Check() == nil {
			t.Errorf("%s is not refused", name)
		}
	}
}

// Package console connects to machines' serial consoles, out of band: at a console server's port, or over IPMI (Serial over LAN).
//
// What is read and written are the console's bytes, untouched. It must never log them: passwords are typed there. Start with Dial.
package console

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"

	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi/rmcpplus"
)

// SOL is the console of machines with an IPMI BMC.
const SOL = "ipmi-sol"

// ErrNone: nobody said where the machine's console is.
var ErrNone = errors.New("the machine's console is not known; set console to tcp://HOST:PORT (a console server's raw port) or ipmi-sol")

// Check tells what is wrong with an address.
func Check(address string) error {
	if address == "" || address == SOL {
		return nil
	}
	_, err := tcpAddress(address)
	return err
}

func tcpAddress(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "tcp" || u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
		return "", fmt.Errorf("%q is not the address of a console; give tcp://HOST:PORT (a console server's raw port) or ipmi-sol", address)
	}
	return u.Host, nil
}

// Dial connects to the console at an address as in api.MachineSpec. The target is the machine's, with its credentials, for ipmi-sol. The
// context bounds the connecting only; closing what is returned gives the console back.
func Dial(ctx context.Context, address string, target power.Target) (io.ReadWriteCloser, error) {
	switch address {
	case "":
		return nil, fmt.Errorf("console of %q: %w", target.Name, ErrNone)
	case SOL:
		return dialSOL(ctx, target)
	}
	host, err := tcpAddress(address)
	if err != nil {
		return nil, fmt.Errorf("console of %q: %w", target.Name, err)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, fmt.Errorf("console of %q: %w", target.Name, err)
	}
	return conn, nil
}

func dialSOL(ctx context.Context, target power.Target) (io.ReadWriteCloser, error) {
	address, err := ipmi.Address(target.Control.Address)
	if err != nil {
		return nil, fmt.Errorf("console of %q: ipmi-sol needs an IPMI BMC: %w", target.Name, err)
	}
	user := target.Credentials.User
	if user == "" {
		user = target.Control.User
	}
	session, err := rmcpplus.Dial(ctx, address, user, target.Credentials.Password)
	if next := target.Credentials.Next; next != "" && errors.Is(err, rmcpplus.ErrCredentials) {
		session, err = rmcpplus.Dial(ctx, address, user, next)
	}
	if err != nil {
		return nil, fmt.Errorf("console of %q: %w", target.Name, ipmi.Explain(address, err))
	}
	console, err := session.OpenConsole(ctx)
	if err != nil {
		return nil, fmt.Errorf("console of %q: %w", target.Name, ipmi.Explain(address, err))
	}
	return console, nil
}

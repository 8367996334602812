// Package pdu reads the power of a machine's outlets from power distribution units, by SNMP (RFC 3416; version 3: RFC 3414).
//
// Which object holds an outlet's power, and in which unit, differs between vendors: both are configured. A machine with several supplies has several
// outlets, whose sum counts only when all of them are known. The package only reads. Start with New.
package pdu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/big"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/gosnmp/gosnmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/energy"
)

// mostWatts bounds what one outlet can carry: a larger number is in another unit.
const mostWatts = 100_000

// tries is how often a question is sent, which the deadline is divided among.
const tries = 2

// Outlet is where an outlet's power is read.
type Outlet struct {
	// Address is HOST or HOST:PORT of the agent; the port is 161 by default.
	Address string `yaml:"address"`
	// OID is the object that holds the power, such as 1.3.6.1.4.1.318.1.1.26.9.4.3.1.7.4, and Scale is what a unit of it is in watts; 0: 1.
	OID   string  `yaml:"oid"`
	Scale float64 `yaml:"scale"`
	// Community is that of version 2c. With a User, version 3 is spoken, with SHA and AES: AuthPassword and PrivacyPassword are both needed.
	Community       string `yaml:"community"`
	User            string `yaml:"user"`
	AuthPassword    string `yaml:"auth_password"`
	PrivacyPassword string `yaml:"privacy_password"`
}

// Check reports what is wrong with an outlet.
func (o *Outlet) Check() error {
	switch {
	case o.Address == "":
		return errors.New("an outlet needs the address of its PDU")
	case !isOID(o.OID):
		return fmt.Errorf("outlet of %s: %q is no object identifier; write numbers with dots between them", o.Address, o.OID)
	case o.Scale < 0 || math.IsInf(o.Scale, 0) || math.IsNaN(o.Scale):
		return fmt.Errorf("outlet of %s: scale %g is not positive", o.Address, o.Scale)
	case (o.Community == "") == (o.User == ""):
		return fmt.Errorf("outlet of %s: give either a community, for version 2c, or a user, for version 3", o.Address)
	case o.User != "" && (len(o.AuthPassword) < 8 || len(o.PrivacyPassword) < 8):
		return fmt.Errorf("outlet of %s: version 3 needs auth_password and privacy_password of 8 characters at least (RFC 3414, section 11.2)", o.Address)
	}
	_, _, err := o.place()
	return err
}

func isOID(text string) bool {
	parts := strings.Split(strings.TrimPrefix(text, "."), ".")
	for _, p := range parts {
		if _, err := strconv.ParseUint(p, 10, 32); err != nil {
			return false
		}
	}
	return len(parts) > 1
}

// place is the agent's host and port.
func (o *Outlet) place() (string, uint16, error) {
	host, port, err := net.SplitHostPort(o.Address)
	if err != nil {
		return strings.Trim(o.Address, "[]"), 161, nil //nolint:nilerr // it has no port
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("outlet of %s: %q is no port", o.Address, port)
	}
	return host, uint16(n), nil
}

// Source reads the outlets of one machine.
type Source struct{ outlets []Outlet }

// New returns a source that reads outlets, which have passed Check; nothing is asked yet.
func New(outlets []Outlet) *Source { return &Source{outlets: outlets} }

// Kind implements energy.Source.
func (s *Source) Kind() api.EnergySource { return api.EnergyPDU }

// Scope implements energy.Source.
func (s *Source) Scope() string { return "the whole machine, at its outlets" }

// Read implements energy.Source.
func (s *Source) Read(ctx context.Context) (energy.Reading, error) {
	sum := 0.0
	for i := range s.outlets {
		watts, err := s.outlets[i].read(ctx)
		if err != nil {
			return energy.Reading{}, fmt.Errorf("outlet %s at %s: %w", s.outlets[i].OID, s.outlets[i].Address, err)
		}
		sum += watts
	}
	return energy.Reading{Watts: sum}, nil
}

// read asks for one outlet's power.
func (o *Outlet) read(ctx context.Context) (float64, error) {
	host, port, err := o.place()
	if err != nil {
		return 0, err
	}
	wait := 2 * time.Second
	if at, ok := ctx.Deadline(); ok {
		wait = max(time.Until(at)/tries, time.Millisecond)
	}
	c := &gosnmp.GoSNMP{
		Context: ctx, Target: host, Port: port, Timeout: wait, Retries: tries - 1, MaxOids: 1, Transport: "udp",
		Version: gosnmp.Version2c, Community: o.Community,
	}
	if o.User != "" {
		c.Version, c.SecurityModel, c.MsgFlags = gosnmp.Version3, gosnmp.UserSecurityModel, gosnmp.AuthPriv
		c.SecurityParameters = &gosnmp.UsmSecurityParameters{
			UserName: o.User, AuthenticationProtocol: gosnmp.SHA, AuthenticationPassphrase: o.AuthPassword,
			PrivacyProtocol: gosnmp.AES, PrivacyPassphrase: o.PrivacyPassword,
		}
	}
	if err := c.Connect(); err != nil {
		return 0, fmt.Errorf("the PDU can't be reached: %w", err)
	}
	defer func() { _ = c.Conn.Close() }()
	answer, err := c.Get([]string{o.OID})
	switch {
	case err != nil:
		return 0, fmt.Errorf("the PDU did not answer; check its address and the community or user: %w", err)
	case answer.Error != gosnmp.NoError:
		return 0, fmt.Errorf("the PDU answered with the error %s", answer.Error)
	case len(answer.Variables) != 1:
		return 0, fmt.Errorf("the PDU answered with %d values instead of one", len(answer.Variables))
	}
	return o.watts(answer.Variables[0])
}

// watts is a value's power. A value that is not there is no power of zero.
func (o *Outlet) watts(v gosnmp.SnmpPDU) (float64, error) {
	scale := o.Scale
	if scale == 0 {
		scale = 1
	}
	var n float64
	switch v.Type {
	case gosnmp.Integer, gosnmp.Counter32, gosnmp.Gauge32, gosnmp.Uinteger32, gosnmp.Counter64:
		n, _ = new(big.Float).SetInt(gosnmp.ToBigInt(v.Value)).Float64()
	case gosnmp.OctetString: // as vendors' agents and scripts say what is no whole number
		text, _ := v.Value.([]byte)
		var err error
		if n, err = strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err != nil {
			return 0, fmt.Errorf("the PDU says %q, which is no number", text)
		}
	case gosnmp.NoSuchObject, gosnmp.NoSuchInstance, gosnmp.EndOfMibView:
		return 0, errors.New("the PDU has no such object")
	default:
		return 0, fmt.Errorf("the PDU answered with a value of type %s instead of a number", v.Type)
	}
	watts := n * scale
	if math.IsNaN(watts) || watts < 0 || watts > mostWatts {
		return 0, fmt.Errorf("the PDU says %g, which would be %g W; check the scale, and whether the outlet has a meter", n, watts)
	}
	return watts, nil
}

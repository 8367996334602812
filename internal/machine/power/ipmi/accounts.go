package ipmi

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/bmcguard"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi/rmcpplus"
)

// Commands of channels and users (section 22), and of the LAN (section 23).
const (
	setChannelAccess = 0x40 // section 22.22
	getChannelAccess = 0x41 // section 22.23
	getChannelInfo   = 0x42 // section 22.24
	setUserAccess    = 0x43 // section 22.26
	getUserAccess    = 0x44 // section 22.27
	setUserName      = 0x45 // section 22.28
	getUserName      = 0x46 // section 22.29
	setUserPassword  = 0x47 // section 22.30

	transport        = 0x0C
	getLANParameters = 0x02 // section 23.2

	passwordDisable, passwordSet = 0x00, 0x02
	nameBytes                    = 16
	noAccess                     = 0x0F
)

// Bits of a user's access to a channel (table 22-32), and of the enable status (the same table).
const (
	callbackOnly  = 0x40
	linkAccess    = 0x20
	messageAccess = 0x10
	userDisabled  = 2
)

// privileges are the levels of privilege (table 22-32).
var privileges = map[byte]string{1: "callback", 2: "user", 3: "operator", 4: "administrator", 5: "OEM", noAccess: "no access"}

// lanParameters are those of table 23-4 that say how the BMC is reached and by what means of login. The addresses don't count where a DHCP server gives them.
var lanParameters = []struct {
	number byte
	name   string
	given  bool
}{
	{2, "authentication types", false},
	{4, "address source", false},
	{3, "address", true},
	{6, "subnet mask", true},
	{12, "gateway", true},
	{20, "VLAN", false},
	{24, "cipher suites' privileges", false},
}

// Look implements bmcguard.Guard: users with their rights on each channel of a network or a serial line, the channels' access, and the LAN's settings.
func (s *Switch) Look(ctx context.Context) (*api.BMCBaseline, error) {
	out := &api.BMCBaseline{Kind: api.PowerIPMI, Address: s.control, Settings: map[string]string{}}
	err := s.session(ctx, func(c *rmcpplus.Session) error {
		channels, err := sessionChannels(ctx, c)
		if err != nil {
			return err
		}
		for _, channel := range channels {
			if err := channel.settings(ctx, c, out.Settings); err != nil {
				return err
			}
		}
		out.Accounts, err = accounts(ctx, c, channels)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// channel is one that users can log in by.
type channel struct {
	number byte
	lan    bool
}

func (ch channel) name() string { return "channel " + strconv.Itoa(int(ch.number)) }

// sessionChannels returns the channels with users: LANs and serial lines (table 6-3). ErrCannot: the BMC does not tell.
func sessionChannels(ctx context.Context, c *rmcpplus.Session) ([]channel, error) {
	const lan, serial, otherLAN = 4, 5, 6
	var all []channel
	for number := byte(1); number <= 0x0B; number++ {
		info, err := c.Command(ctx, app, getChannelInfo, number)
		var failed *rmcpplus.Completion
		switch {
		case errors.As(err, &failed):
			continue // there is no such channel, and BMCs differ in how they say so
		case err != nil:
			return nil, fmt.Errorf("look for channel %d: %w", number, err)
		case len(info) < 2:
			continue
		}
		switch medium := info[1] & 0x7F; medium {
		case lan, otherLAN:
			all = append(all, channel{number, true})
		case serial:
			all = append(all, channel{number, false})
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the BMC tells of no channel that users log in by: %w", power.ErrCannot)
	}
	return all, nil
}

// settings reads the access to a channel, kept and present, and the settings of a LAN. What a BMC does not have is left out.
func (ch channel) settings(ctx context.Context, c *rmcpplus.Session, into map[string]string) error {
	read := func(name string, netFn, command byte, skip int, data ...byte) ([]byte, error) {
		answer, err := c.Command(ctx, netFn, command, data...)
		var failed *rmcpplus.Completion
		if errors.As(err, &failed) || err == nil && len(answer) <= skip {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", name, ch.name(), err)
		}
		into[ch.name()+" "+name] = hex.EncodeToString(answer[skip:])
		return answer[skip:], nil
	}
	for name, which := range accessOf {
		if _, err := read(name, app, getChannelAccess, 0, ch.number, which); err != nil {
			return err
		}
	}
	if !ch.lan {
		return nil
	}
	given := false
	for _, p := range lanParameters {
		if p.given && given {
			continue
		}
		value, err := read(p.name, transport, getLANParameters, 1, ch.number, p.number, 0, 0)
		if err != nil {
			return err
		}
		const dhcp = 2
		given = given || p.number == 4 && len(value) > 0 && value[0]&0x0F == dhcp
	}
	return nil
}

// accessOf are the two settings of a channel's access, by the bits that ask for them.
var accessOf = map[string]byte{"access, kept": 0x40, "access, present": 0x80}

// accounts reads the users that have a name or some right.
func accounts(ctx context.Context, c *rmcpplus.Session, channels []channel) ([]api.BMCAccount, error) {
	var all []api.BMCAccount
	for id, most := byte(1), byte(1); id <= most; id++ {
		name, err := userName(ctx, c, id)
		if err != nil {
			return nil, err
		}
		account, disabled := api.BMCAccount{ID: strconv.Itoa(int(id)), Name: name, Rights: map[string]string{}}, false
		for _, ch := range channels {
			access, err := c.Command(ctx, app, getUserAccess, ch.number, id)
			var failed *rmcpplus.Completion
			switch {
			case errors.As(err, &failed) && cannot(failed):
				return nil, fmt.Errorf("the BMC does not tell of its users: %w: %w", power.ErrCannot, err)
			case err == nil && len(access) < 4:
				err = fmt.Errorf("the BMC's answer has %d bytes instead of 4", len(access))
			}
			if err != nil {
				return nil, fmt.Errorf("read the access of user %d to %s: %w", id, ch.name(), err)
			}
			most = max(most, access[0]&0x3F)
			disabled = disabled || access[1]>>6 == userDisabled
			if rights := accessText(access[3]); rights != "" {
				account.Rights[ch.name()] = rights
			}
		}
		account.Enabled = len(account.Rights) > 0 && !disabled
		if account.Name != "" || len(account.Rights) > 0 {
			all = append(all, account)
		}
	}
	return all, nil
}

// userName reads a user's name. Some BMCs have none for the first user, whose name is fixed to be empty.
func userName(ctx context.Context, c *rmcpplus.Session, id byte) (string, error) {
	answer, err := c.Command(ctx, app, getUserName, id)
	var failed *rmcpplus.Completion
	if errors.As(err, &failed) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the name of user %d: %w", id, err)
	}
	name, _, _ := bytes.Cut(answer, []byte{0})
	return string(name), nil
}

// accessText is a user's access to a channel in words, empty for none.
func accessText(access byte) string {
	if access&(linkAccess|messageAccess) == 0 || access&0x0F == noAccess || access&0x0F == 0 {
		return ""
	}
	text := privileges[access&0x0F]
	if text == "" {
		text = fmt.Sprintf("privilege %d", access&0x0F)
	}
	for _, kind := range []struct {
		bit  byte
		name string
	}{{messageAccess, " IPMI"}, {linkAccess, " link"}, {callbackOnly, " callback-only"}} {
		if access&kind.bit != 0 {
			text += kind.name
		}
	}
	return text
}

// Restore implements bmcguard.Guard. Users that could not log in before can't afterwards, and the channels' access is as it was. Of a user that could log in
// and was changed, the password may have been changed as well, which nobody can read, so that one is left to an operator.
func (s *Switch) Restore(ctx context.Context, baseline *api.BMCBaseline) error {
	is, err := s.Look(ctx)
	if err != nil {
		return err
	}
	var left []bmcguard.Difference
	err = s.session(ctx, func(c *rmcpplus.Session) error {
		channels, err := sessionChannels(ctx, c)
		if err != nil {
			return err
		}
		for _, d := range bmcguard.Differences(baseline, is) {
			done, err := undo(ctx, c, d, channels)
			if err != nil {
				return err
			}
			if !done {
				left = append(left, d)
			}
		}
		return nil
	})
	if err == nil && len(left) > 0 {
		err = bmcguard.Unrestored(left)
	}
	return err
}

// undo makes one thing as it was; false: it can't be proved to be.
func undo(ctx context.Context, c *rmcpplus.Session, d bmcguard.Difference, channels []channel) (done bool, err error) {
	switch {
	case d.Setting != "":
		return undoAccess(ctx, c, d, channels)
	case d.Is == nil:
		return false, nil
	case d.Was != nil && (d.Was.Enabled || len(d.Was.Rights) > 0 && (d.Was.Name != d.Is.Name || !maps.Equal(d.Was.Rights, d.Is.Rights))):
		return false, nil // a user that was disabled and kept its rights is only disabled again
	}
	number, err := strconv.ParseUint(d.Account, 10, 6)
	if err != nil {
		return false, fmt.Errorf("%q is not the number of a user: %w", d.Account, err)
	}
	if d.Was == nil || len(d.Was.Rights) == 0 {
		name := ""
		if d.Was != nil {
			name = d.Was.Name
		}
		if err := takeRights(ctx, c, byte(number), name, channels); err != nil {
			return false, err
		}
	}
	return true, disableUser(ctx, c, byte(number))
}

// undoAccess sets the access to a channel back (tables 22-28 and 22-29). Settings of a LAN are left: the session that changed them could be cut off by it.
func undoAccess(ctx context.Context, c *rmcpplus.Session, d bmcguard.Difference, channels []channel) (done bool, err error) {
	for _, ch := range channels {
		for name, which := range accessOf {
			if d.Setting != ch.name()+" "+name {
				continue
			}
			was, err := hex.DecodeString(d.Before)
			if err != nil || len(was) < 2 {
				return false, nil
			}
			if _, err := c.Command(ctx, app, setChannelAccess, ch.number, which|was[0]&0x3F, which|was[1]&0x0F); err != nil {
				return false, fmt.Errorf("restore %s: %w", d.Setting, err)
			}
			return true, nil
		}
	}
	return false, nil
}

// takeRights takes all rights from a user, and gives it a password that nobody knows and the name that it had.
func takeRights(ctx context.Context, c *rmcpplus.Session, id byte, name string, channels []channel) error {
	for _, ch := range channels {
		// The first bit lets the following ones count.
		if _, err := c.Command(ctx, app, setUserAccess, 0x80|ch.number, id, noAccess, 0); err != nil {
			return fmt.Errorf("take the rights of user %d on %s: %w", id, ch.name(), err)
		}
	}
	if err := setPassword(ctx, c, id, bmcguard.NewPassword()); err != nil {
		return fmt.Errorf("change the password of user %d: %w", id, err)
	}
	if id == 1 {
		return nil // its name is fixed (section 22.28)
	}
	var field [nameBytes]byte
	copy(field[:], name)
	if _, err := c.Command(ctx, app, setUserName, append([]byte{id}, field[:]...)...); err != nil {
		return fmt.Errorf("restore the name of user %d: %w", id, err)
	}
	return nil
}

func disableUser(ctx context.Context, c *rmcpplus.Session, id byte) error {
	if _, err := c.Command(ctx, app, setUserPassword, append([]byte{id, passwordDisable}, make([]byte, passwordBytes)...)...); err != nil {
		return fmt.Errorf("disable user %d: %w", id, err)
	}
	return nil
}

// passwordBytes are those of a password that every BMC takes; IPMI 2.0 knows longer ones, of 20 bytes (section 22.30).
const passwordBytes = 16

func setPassword(ctx context.Context, c *rmcpplus.Session, id byte, password string) error {
	var field [passwordBytes]byte
	copy(field[:], password)
	_, err := c.Command(ctx, app, setUserPassword, append([]byte{id, passwordSet}, field[:]...)...)
	return err
}

// SetPassword implements bmcguard.Guard.
func (s *Switch) SetPassword(ctx context.Context, password string) error {
	if len(password) > passwordBytes {
		return fmt.Errorf("a password of %d bytes is longer than the %d that every BMC takes: %w", len(password), passwordBytes, power.ErrCannot)
	}
	err := s.session(ctx, func(c *rmcpplus.Session) error {
		if s.passwords.Right() == password {
			return nil // it was set, and only the answer was lost
		}
		id, err := s.ownUser(ctx, c)
		if err != nil {
			return err
		}
		err = setPassword(ctx, c, id, password)
		var failed *rmcpplus.Completion
		if errors.As(err, &failed) && cannot(failed) {
			return fmt.Errorf("the BMC can't change passwords: %w: %w", power.ErrCannot, err)
		}
		return err
	})
	if err != nil {
		return err
	}
	s.passwords.Took(password)
	err = s.session(ctx, func(*rmcpplus.Session) error { return nil })
	if err == nil && s.passwords.Right() != password {
		err = fmt.Errorf("IPMI at %s: the BMC still takes the former password", s.address)
	}
	return err
}

// ownUser returns the number of the user that this switch logs in as.
func (s *Switch) ownUser(ctx context.Context, c *rmcpplus.Session) (byte, error) {
	for id, most := byte(1), byte(1); id <= most; id++ {
		access, err := c.Command(ctx, app, getUserAccess, presentChannel, id)
		var failed *rmcpplus.Completion
		if errors.As(err, &failed) && cannot(failed) || err == nil && len(access) < 4 {
			return 0, fmt.Errorf("the BMC does not tell of its users: %w", power.ErrCannot)
		}
		if err != nil {
			return 0, fmt.Errorf("look for user %q: %w", s.credentials.User, err)
		}
		most = max(most, access[0]&0x3F)
		name, err := userName(ctx, c, id)
		if err != nil {
			return 0, err
		}
		if name == s.credentials.User && accessText(access[3]) != "" {
			return id, nil
		}
	}
	return 0, fmt.Errorf("the BMC names no user %q that may log in: %w", s.credentials.User, power.ErrCannot)
}

// presentChannel stands for the channel that a command comes by (table 6-1).
const presentChannel = 0x0E

package redfish

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/bmcguard"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

var _ bmcguard.Guard = (*Switch)(nil)

// manager is what is read of a manager: a BMC (schema Manager, DSP0268).
type manager struct {
	HostInterfaces  link `json:"HostInterfaces"`
	NetworkProtocol link `json:"NetworkProtocol"`
	Oem             struct {
		Supermicro struct {
			KCSInterface link `json:"KCSInterface"`
		} `json:"Supermicro"`
	} `json:"Oem"`
}

// Privileges of KCS on Supermicro's boards (Supermicro, "Redfish Reference Guide", KCSInterface). With the least one, a machine's root can neither read nor
// change users. The BMC's license must allow Redfish.
const (
	kcsClosed = "Callback"
	kcsOpen   = "Administrator"
)

// managers reads the managers of the machine: those that its system names, else all.
func (s *Switch) managers(ctx context.Context, c *client) ([]manager, error) {
	system, err := s.find(ctx, c)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, l := range system.Links.ManagedBy {
		paths = append(paths, l.Path)
	}
	if len(paths) == 0 && c.root.Managers.Path != "" && s.system == "" {
		if paths, err = c.members(ctx, c.root.Managers.Path); err != nil {
			return nil, err
		}
	}
	all := make([]manager, len(paths))
	for i, path := range paths {
		if err := c.get(ctx, path, &all[i]); err != nil {
			return nil, fmt.Errorf("read the manager %s: %w", path, err)
		}
	}
	return all, nil
}

// CloseHost implements bmcguard.Guard. Redfish has a standard setting for its own host interface (schema HostInterface, DSP0270) and none for KCS, so only
// the maker's setting closes that: Supermicro's is known here.
func (s *Switch) CloseHost(ctx context.Context) (state api.HostInterface, reason string, err error) {
	state = api.HostFixed
	err = s.session(ctx, func(c *client) error {
		managers, err := s.managers(ctx, c)
		if err != nil {
			return err
		}
		if len(managers) == 0 {
			reason = "the service names no manager of the machine"
			return nil
		}
		closed := 0
		for _, m := range managers {
			if err := m.enableInterfaces(ctx, c, false); err != nil {
				return err
			}
			if m.Oem.Supermicro.KCSInterface.Path == "" {
				continue
			}
			if err := m.setKCS(ctx, c, kcsClosed); err != nil {
				return err
			}
			closed++
		}
		if closed < len(managers) {
			reason = "Redfish has no setting for KCS, and the BMC's maker has none that is known here"
			return nil
		}
		state = api.HostClosed
		return nil
	})
	return state, reason, err
}

// OpenHost implements bmcguard.Guard.
func (s *Switch) OpenHost(ctx context.Context) error {
	return s.session(ctx, func(c *client) error {
		managers, err := s.managers(ctx, c)
		if err != nil {
			return err
		}
		opened := false
		for _, m := range managers {
			if m.Oem.Supermicro.KCSInterface.Path == "" {
				continue
			}
			if err := m.setKCS(ctx, c, kcsOpen); err != nil {
				return err
			}
			opened = true
		}
		if !opened {
			return fmt.Errorf("the BMC has no setting for KCS that is known here: %w", power.ErrCannot)
		}
		return nil
	})
}

// setKCS gives KCS a privilege and reads it back.
func (m *manager) setKCS(ctx context.Context, c *client, want string) error {
	var is struct {
		Privilege string `json:"Privilege"`
	}
	path := m.Oem.Supermicro.KCSInterface.Path
	if err := c.get(ctx, path, &is); err != nil {
		return fmt.Errorf("read the privilege of KCS: %w", err)
	}
	if is.Privilege == want {
		return nil
	}
	if err := c.patch(ctx, path, map[string]string{"Privilege": want}); err != nil {
		return fmt.Errorf("set the privilege of KCS: %w", err)
	}
	if err := c.get(ctx, path, &is); err != nil {
		return fmt.Errorf("read the privilege of KCS back: %w", err)
	}
	if is.Privilege != want {
		return fmt.Errorf("the BMC took the privilege %q for KCS and still has %q", want, is.Privilege)
	}
	return nil
}

// hostInterface is Redfish over an internal network link between machine and BMC.
type hostInterface struct {
	Path    string `json:"@odata.id"`
	Enabled *bool  `json:"InterfaceEnabled"`
}

func (m *manager) interfaces(ctx context.Context, c *client) ([]hostInterface, error) {
	if m.HostInterfaces.Path == "" {
		return nil, nil
	}
	paths, err := c.members(ctx, m.HostInterfaces.Path)
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the host interfaces: %w", err)
	}
	all := make([]hostInterface, len(paths))
	for i, path := range paths {
		if err := c.get(ctx, path, &all[i]); err != nil {
			return nil, fmt.Errorf("read the host interface %s: %w", path, err)
		}
		all[i].Path = path
	}
	return all, nil
}

// enableInterfaces switches Redfish's own host interfaces, and reads them back.
func (m *manager) enableInterfaces(ctx context.Context, c *client, want bool) error {
	all, err := m.interfaces(ctx, c)
	if err != nil {
		return err
	}
	for _, i := range all {
		if i.Enabled == nil || *i.Enabled == want {
			continue
		}
		if err := c.patch(ctx, i.Path, map[string]bool{"InterfaceEnabled": want}); err != nil {
			return fmt.Errorf("switch the host interface %s: %w", i.Path, err)
		}
		if err := c.get(ctx, i.Path, &i); err != nil {
			return fmt.Errorf("read the host interface %s back: %w", i.Path, err)
		}
		if i.Enabled == nil || *i.Enabled != want {
			return fmt.Errorf("the BMC took the setting of the host interface %s and did not follow", i.Path)
		}
	}
	return nil
}

// missing reports whether a service answered that it does not have a resource.
func missing(err error) bool {
	var status *statusError
	return errors.As(err, &status) && slices.Contains([]int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented}, status.code)
}

// account is one user (schema ManagerAccount).
type account struct {
	Path     string   `json:"@odata.id"`
	ID       string   `json:"Id"`
	UserName string   `json:"UserName"`
	Enabled  bool     `json:"Enabled"`
	RoleID   string   `json:"RoleId"`
	Types    []string `json:"AccountTypes"`
}

// accountService is what is read of it (schema AccountService).
type accountService struct {
	Accounts         link            `json:"Accounts"`
	LocalAccountAuth string          `json:"LocalAccountAuth"`
	LDAP             externalAccount `json:"LDAP"`
	ActiveDirectory  externalAccount `json:"ActiveDirectory"`
}

type externalAccount struct {
	ServiceEnabled   bool     `json:"ServiceEnabled"`
	ServiceAddresses []string `json:"ServiceAddresses"`
}

func (e externalAccount) text() string {
	return strconv.FormatBool(e.ServiceEnabled) + " " + strings.Join(e.ServiceAddresses, " ")
}

// accounts reads the service and its users. ErrCannot: it has none.
func (c *client) accounts(ctx context.Context) (*accountService, []account, error) {
	if c.root.AccountService.Path == "" {
		return nil, nil, fmt.Errorf("the service does not tell of its users: %w", power.ErrCannot)
	}
	var service accountService
	if err := c.get(ctx, c.root.AccountService.Path, &service); missing(err) || err == nil && service.Accounts.Path == "" {
		return nil, nil, fmt.Errorf("the service does not tell of its users: %w", power.ErrCannot)
	} else if err != nil {
		return nil, nil, err
	}
	paths, err := c.members(ctx, service.Accounts.Path)
	if err != nil {
		return nil, nil, err
	}
	all := make([]account, len(paths))
	for i, path := range paths {
		if err := c.get(ctx, path, &all[i]); err != nil {
			return nil, nil, err
		}
		all[i].Path = path
	}
	return &service, all, nil
}

// protocols are those of a manager that users log in by (schema ManagerNetworkProtocol).
var protocols = []string{"HTTP", "HTTPS", "IPMI", "KVMIP", "SNMP", "SSH", "Telnet", "VirtualMedia"}

// Look implements bmcguard.Guard: users with their roles, directory services, and the protocols by which users log in.
func (s *Switch) Look(ctx context.Context) (*api.BMCBaseline, error) {
	out := &api.BMCBaseline{Kind: api.PowerRedfish, Address: s.address, Settings: map[string]string{}}
	err := s.session(ctx, func(c *client) error {
		service, all, err := c.accounts(ctx)
		if err != nil {
			return err
		}
		for _, a := range all {
			if a.UserName == "" && !a.Enabled {
				continue // a slot that is free
			}
			rights := map[string]string{"role": a.RoleID}
			if len(a.Types) > 0 {
				slices.Sort(a.Types)
				rights["types"] = strings.Join(a.Types, " ")
			}
			out.Accounts = append(out.Accounts, api.BMCAccount{ID: a.ID, Name: a.UserName, Enabled: a.Enabled, Rights: rights})
		}
		out.Settings["local accounts"] = service.LocalAccountAuth
		out.Settings["LDAP"], out.Settings["Active Directory"] = service.LDAP.text(), service.ActiveDirectory.text()
		managers, err := s.managers(ctx, c)
		if err != nil {
			return err
		}
		for i, m := range managers {
			if err := m.protocols(ctx, c, fmt.Sprintf("manager %d ", i+1), out.Settings); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (m *manager) protocols(ctx context.Context, c *client, prefix string, into map[string]string) error {
	if m.NetworkProtocol.Path == "" {
		return nil
	}
	var all map[string]any
	if err := c.get(ctx, m.NetworkProtocol.Path, &all); missing(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("read the manager's protocols: %w", err)
	}
	for _, name := range protocols {
		if p, ok := all[name].(map[string]any); ok {
			into[prefix+name] = fmt.Sprintf("enabled %v, port %v", p["ProtocolEnabled"], p["Port"])
		}
	}
	return nil
}

// Restore implements bmcguard.Guard: it deletes users that were added, and disables those that were disabled. What else was changed is left to an operator.
func (s *Switch) Restore(ctx context.Context, baseline *api.BMCBaseline) error {
	is, err := s.Look(ctx)
	if err != nil {
		return err
	}
	var left []bmcguard.Difference
	err = s.session(ctx, func(c *client) error {
		_, all, err := c.accounts(ctx)
		if err != nil {
			return err
		}
		for _, d := range bmcguard.Differences(baseline, is) {
			i := slices.IndexFunc(all, func(a account) bool { return a.ID == d.Account })
			switch {
			case d.Account == "" || i < 0 || d.Was != nil && (d.Was.Enabled || d.Was.Name != d.Is.Name):
				left = append(left, d)
				continue
			case d.Was == nil:
				err = c.remove(ctx, all[i].Path)
			default:
				err = c.patch(ctx, all[i].Path, map[string]bool{"Enabled": false})
			}
			if err != nil {
				return fmt.Errorf("set user %q right: %w", all[i].UserName, err)
			}
		}
		return nil
	})
	if err == nil && len(left) > 0 {
		err = bmcguard.Unrestored(left)
	}
	return err
}

// remove deletes a user. A service whose users are in fixed places is asked to empty one.
func (c *client) remove(ctx context.Context, path string) error {
	_, err := c.do(ctx, http.MethodDelete, path, nil, "", nil)
	if missing(err) {
		err = c.patch(ctx, path, map[string]any{"Enabled": false, "UserName": ""})
	}
	return err
}

// SetPassword implements bmcguard.Guard. The password of a service for several systems is left alone: other machines' power is controlled by it.
func (s *Switch) SetPassword(ctx context.Context, password string) error {
	if s.system != "" {
		return fmt.Errorf("the service is of several systems, whose power is controlled by the same password: %w", power.ErrCannot)
	}
	err := s.session(ctx, func(c *client) error {
		if c.credentials.Password == password {
			return nil // it was set, and only the answer was lost
		}
		own, err := s.ownAccount(ctx, c)
		if err != nil {
			return err
		}
		return c.patch(ctx, own.Path, map[string]string{"Password": password})
	})
	if err != nil {
		return err
	}
	s.passwords.Took(password)
	err = s.session(ctx, func(c *client) error {
		_, err := s.ownAccount(ctx, c) // a service without sessions takes any login, and refuses the first request
		return err
	})
	if err == nil && s.passwords.Right() != password {
		err = fmt.Errorf("the BMC at %s (Redfish) still takes the former password", s.base.Host)
	}
	return err
}

// ownAccount finds the user that this switch logs in as.
func (s *Switch) ownAccount(ctx context.Context, c *client) (*account, error) {
	_, all, err := c.accounts(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].UserName == s.credentials.User {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("the service names no user %q: %w", s.credentials.User, power.ErrCannot)
}

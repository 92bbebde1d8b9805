module chaos

go 1.24

require ferry v0.0.0

replace ferry => ../../../bindings/go

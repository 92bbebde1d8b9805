module ferry

go 1.24

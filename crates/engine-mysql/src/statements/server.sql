-- The server's name and version. VERSION() returns, for example, `10.11.6-MariaDB-1`.
SELECT CONCAT(IF(VERSION() LIKE '%MariaDB%', 'MariaDB ', 'MySQL '), SUBSTRING_INDEX(VERSION(), '-', 1))
